"""Outcome of a run: verdict, diagnosis, stacks."""
