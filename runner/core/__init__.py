"""Data and decisions: what a run is. Python 3.8, standard library: it travels."""
