"""The ranks of a node: shim, exit records, hang watchdog, stack dumps."""
