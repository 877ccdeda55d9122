"""A declarative launcher for distributed PyTorch over SSH."""

__version__ = "0.1.0"
