"""Container engines: how each one's program runs a command of ours in an image, one file each."""
