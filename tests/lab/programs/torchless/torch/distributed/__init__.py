"""Only `run` is here."""
