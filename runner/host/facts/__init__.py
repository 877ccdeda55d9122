"""Facts: what a host reports about itself."""
