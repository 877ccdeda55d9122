"""Jobs of Slurm: submitted, waited for, and ended."""
