"""Pure data and functions: what a run is. Python 3.8, standard library: it travels."""
