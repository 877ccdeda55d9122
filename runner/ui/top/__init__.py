"""Live view of a cluster: nodes, their GPUs and whose they are, and the runs on them."""
