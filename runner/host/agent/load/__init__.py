"""Load requests: how busy this host is."""
