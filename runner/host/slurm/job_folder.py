"""Job folder of a run: what the launch and the site have set, secrets, and the job's starts."""

from __future__ import annotations

import contextlib
import os
from typing import Any, Mapping, Tuple

from runner.core.codec import decode, parse_json
from runner.core.model.plan import Order
from runner.core.model.run_info import PastAttempt, RunInfo
from runner.core.model.slurm import UNKNOWN, JobStatus
from runner.core.protocol.paths import JobPaths, RunPaths, StartPaths
from runner.host.process import procfs
from runner.host.slurm import shared_files
from runner.host.storage.run_folder import read_events, write_atomic


class JobSettings:
    """What the site and the launch have set for a job."""

    def __init__(self, paths: JobPaths) -> None:
        context = shared_files.read(paths.context) or {}
        slurm = context.get("spec", {}).get("cluster", {}).get("slurm") or {}
        self.kill_wait_s = float(context.get("kill_wait_s", 30.0))
        self.tracks_by_cgroup = "cgroup" in str(context.get("proctrack", ""))
        self.is_shared = bool(context.get("is_shared"))
        """Whether the job is an allocation of its user, which may have other runs, too."""
        self.job_name = "" if self.is_shared else os.path.basename(paths.run)
        """By which Slurm calls the job, "" for an allocation."""
        self.is_requeued = bool(slurm.get("requeue")) and not self.is_shared


def last_start(paths: JobPaths) -> StartPaths:
    """Return the files of the last start of a job."""
    return paths.start(last_start_number(paths))


def last_start_number(paths: JobPaths) -> int:
    """Return the number of the last start of a job, from 0."""
    return int(procfs.read_text(paths.last_start).strip() or 0)


def command_file(order: Order) -> str:
    """Return the file of the commands to the supervisor of a node."""
    return last_start(JobPaths(order.workdir, order.run_id)).commands(order.node)


def job_paths(root: str) -> JobPaths:
    """Return the paths of a job by those of its folder."""
    runs, run_id, _ = root.rsplit("/", 2)
    return JobPaths(os.path.dirname(runs), run_id)


def start_number(environ: Mapping[str, str]) -> int:
    """Return which start of the job this is; Slurm counts those after the first."""
    return int(environ.get("SLURM_RESTART_COUNT") or 0)


def past_attempts(paths: JobPaths, number: int) -> Tuple[PastAttempt, ...]:
    """Return the attempts of a run before the job's n-th start, by what was planned last."""
    if not number:
        return ()
    workdir, _, run_id = paths.run.rsplit("/", 2)
    folders = [RunPaths(workdir, run_id, name) for name in os.listdir(paths.run)]
    texts = {folder: text for folder in folders if (text := procfs.read_text(folder.info))}
    if not texts:
        return ()
    infos = {folder: decode(RunInfo, parse_json(text)) for folder, text in texts.items()}
    last = max(infos.values(), key=lambda info: info.attempt)
    nodes = tuple(procfs.read_text(paths.start(number - 1).nodes).split())
    events = (event for folder in infos for event in read_events(folder))
    times = [event.wall for event in events if event.attempt == last.attempt]
    seconds = max(times) - min(times) if times else 0.0
    past = PastAttempt(last.attempt, nodes, "its job was started again", round(seconds, 3))
    return (*last.past_attempts, past)


def write_files(paths: JobPaths, data: Mapping[str, Any], site: Mapping[str, Any]) -> None:
    """Write what a launch has sent for a job, and what the `site` has set, into its folder."""
    for folder in (paths.root, paths.start(0).root):
        os.mkdir(folder, 0o700)
    write_atomic(paths.nonce, data["nonce"])
    shared_files.write(paths.secrets, {"secrets": data["secrets"], "token": data["token"]})
    shared_files.write(paths.context, {**data["context"], **site})
    write_atomic(paths.script, data["script"])
    write_atomic(paths.start(0).orders, "")
    write_atomic(paths.last_start, "0\n")


def remove_secrets(paths: JobPaths, found: JobStatus) -> None:
    """Remove the secrets of a job if it is over; its script does so, unless it was killed.

    A job that Slurm may start again is not in the queue for a moment: it is over once it was
    cancelled by us, or Slurm has forgotten it.
    """
    returns = JobSettings(paths).is_requeued and not os.path.exists(paths.cancelled)
    if not found.has_ended or (returns and found.state != UNKNOWN):
        return
    with contextlib.suppress(OSError):
        os.unlink(paths.secrets)
