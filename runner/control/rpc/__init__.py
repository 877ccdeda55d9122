"""Requests and replies over one connection per host."""
