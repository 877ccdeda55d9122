"""What stands before the real torch on PYTHONPATH where torch is not what is tested."""
