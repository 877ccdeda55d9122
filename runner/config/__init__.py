"""The configuration: YAML and command line in, a checked `Composed` out. Hydra lives here."""
