"""Slurm on the hosts: the tasks of a job, and the commands of a login node."""
