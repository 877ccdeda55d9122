"""Relaunch policy, and what supervisors need to plan the next attempt."""
