"""Run folders and releases on a host's disk."""
