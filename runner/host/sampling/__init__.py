"""Samples of the load of this host: cores, memory, network and disks, and its GPUs."""
