"""Checks of a cluster, one per file: pure functions over the facts of its hosts."""
