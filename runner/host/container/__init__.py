"""Containers on a host: the first program inside, the client outside, and their removal."""
