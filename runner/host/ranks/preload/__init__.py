"""Forked ranks: a process of each node imports torch once, and forks its ranks."""
