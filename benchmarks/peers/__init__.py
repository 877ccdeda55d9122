"""Comparison with other launchers, on the same hosts."""
