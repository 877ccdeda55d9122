"""Stand-in for what an optimizer imports at first."""
