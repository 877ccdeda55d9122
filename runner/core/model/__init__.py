"""The data types of a run."""
