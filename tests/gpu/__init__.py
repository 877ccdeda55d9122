"""Checks that need NVIDIA GPUs: `make gpu`."""
