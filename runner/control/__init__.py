"""The controller's side of a run: connect, launch, follow, stop, record."""
