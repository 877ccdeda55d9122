"""Data and decisions: what a run is. Standard library only."""
