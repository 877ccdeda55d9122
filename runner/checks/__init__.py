"""Checks of a cluster: pure functions over the facts of its hosts."""
