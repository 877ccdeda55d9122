"""Connections between the supervisors of an attempt: hub, members, links."""
