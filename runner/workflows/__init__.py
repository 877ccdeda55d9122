"""Workflows of the launch and the verbs, from first to last step."""
