"""What may be wrong with a cluster, one check per file: pure functions over what its hosts say."""
