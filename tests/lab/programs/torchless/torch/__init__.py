"""Stand-in for torch, put before the real one on PYTHONPATH where torch is not under test."""
