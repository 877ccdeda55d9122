"""Job folder of a run: what the launch and the site have set, and the last start of the job."""

from __future__ import annotations

import os
from typing import Container

from runner.core.model.plan import Order
from runner.core.protocol.paths import JobPaths, StartPaths
from runner.host.process import procfs
from runner.host.slurm import shared_files


class JobSettings:
    """What the site and the launch have set for a job."""

    def __init__(self, paths: JobPaths) -> None:
        context = shared_files.read(paths.context) or {}
        slurm = context.get("spec", {}).get("slurm") or {}
        self.kill_wait_s = float(context.get("kill_wait_s", 30.0))
        self.tracks_by_cgroup = "cgroup" in str(context.get("proctrack", ""))
        self.allocation = str(context.get("allocation", ""))
        """The job whose nodes the run uses, "" for one of its own."""
        self.is_requeued = bool(slurm.get("requeue")) and not self.allocation


def last_start(paths: JobPaths) -> StartPaths:
    """Return the files of the last start of a job."""
    return paths.start(last_start_number(paths))


def last_start_number(paths: JobPaths) -> int:
    """Return the number of the last start of a job, from 0."""
    return int(procfs.read_text(paths.last_start).strip() or 0)


def is_first(paths: JobPaths, node: str, lost: Container[str]) -> bool:
    """Return whether a node is the first one of the job's last start that is not lost."""
    names = procfs.read_text(last_start(paths).nodes).split()
    return [name for name in names if name not in lost][:1] == [node]


def command_file(order: Order) -> str:
    """Return the file of the commands to the supervisor of a node."""
    return last_start(JobPaths(order.workdir, order.run_id)).commands(order.node)


def job_paths(root: str) -> JobPaths:
    """Return the paths of a job by those of its folder."""
    runs, run_id, _ = root.rsplit("/", 2)
    return JobPaths(os.path.dirname(runs), run_id)
