"""File names in a run's record on the controller's machine."""

CONFIG_FILE = "config.yaml"
OVERRIDES_FILE = "overrides.yaml"  # of a launch here
PLAN_FILE = "plan.json"  # and how the hosts are reached
RESULT_FILE = "result.json"
JOB_FILE = "job.json"  # where the launch is in a job of Slurm: what it begins with

LATEST = "latest"
"""The name of the link to the last run launched from a folder."""

HOSTS_FOLDER = "hosts"
"""Below it, a folder for each node with what its host has on record."""

SWEEP_FILE = "sweep.json"
"""In the record of a run, its place in a sweep; in the folder of a sweep, its runs."""
