"""One run on the hosts of a cluster: found, and followed from one attempt to the next."""
