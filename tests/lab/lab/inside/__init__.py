"""Programs that run in the lab's namespaces, started by path and without this package."""
