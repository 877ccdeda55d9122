"""The part of core that travels to hosts: Python 3.8, standard library."""
