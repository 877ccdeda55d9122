"""Processes: /proc, signals, cgroups, bounded children, event loop."""
