"""Live pages: a run, or all runs of a cluster, shown by a small web server on this machine."""
