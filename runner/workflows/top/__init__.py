"""Live view of a cluster: hosts that are watched, the view while it is shown, and one look."""
