"""Tests of what hosts do about Slurm."""
