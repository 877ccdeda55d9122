"""Training programs that plain torchrun can start by hand; they know nothing of the runner."""
