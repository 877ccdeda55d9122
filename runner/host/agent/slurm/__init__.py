"""The agent on a login node of Slurm."""
