"""Readers of the record of a run: damaged parts become problems, and never raise."""
