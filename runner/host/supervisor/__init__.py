"""The supervisor: starts what an order says, keeps its record, and ends it."""
