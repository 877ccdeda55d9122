"""The history of a run: its record, read into plain data."""
