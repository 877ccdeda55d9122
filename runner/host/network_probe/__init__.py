"""Reachability tests between hosts."""
