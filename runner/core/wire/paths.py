"""Paths of every file of a run, on the hosts and in the controller's run folder."""

from __future__ import annotations

import posixpath
import re
from typing import AbstractSet, Optional, Tuple

from runner.core.wire.codec import bounded, matching

USUAL_WORKDIR = "~/.runner"  # of runs on a host, unless the configuration says otherwise

# Code that was pushed: manifests, and contents of files by their sha256
RELEASES = "releases"
POOL = "pool"

KEEP = "keep"  # folders of tasks that outlive their runs

EVENTS_FILE = "events.jsonl"
SAMPLES_FILE = "samples.jsonl"  # of a host's load in an attempt; of all hosts in a record

# Stems and streams of logs in the folder of an attempt
PROGRAM_LOG = "program"  # of the launcher process, such as torchrun; ranks have `rank_R`
STACKS_LOG = "stacks"  # of the Python stacks of a node's ranks
STREAMS = ("out", "err")
METRICS_STREAM = "metrics"  # a rank appends its metrics to the file that `RUNNER_METRICS` names
RUN_LOGS = (
    f"{PROGRAM_LOG}.out",
    f"{PROGRAM_LOG}.err",
    f"{STACKS_LOG}.out",
)  # beside those of ranks
RANK_LOG = re.compile(rf"rank_([0-9]{{1,9}})\.({'|'.join((*STREAMS, METRICS_STREAM))})")
NO_RANK = -1  # stands for a command on a node, which is no rank

# Lines of a dump of stacks
DUMP_HEADER = "=== stacks, {when}: {why}\n"
DUMP_END = "=== end\n"
PROCESS_HEADER = "--- rank {rank}: process {pid} ({program}), by {how}\n"

# The modules of a fork server, and their package in a run folder, whose name no program has
PRELOAD_MODULES = ("fork_server", "forked_rank")
PRELOAD_PACKAGE = "runner_preload"

# Limits of decoded fields that become parts of paths
RUN_ID_PATTERN = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
NODE_PATTERN = re.compile(r"\w[\w.-]*")
RUN_ID = matching(RUN_ID_PATTERN)
NODE_NAME = matching(NODE_PATTERN)
RANK = bounded(0, 10**9 - 1)
ATTEMPT = bounded(0, 10**6 - 1)


def is_run_id(text: object) -> bool:
    return isinstance(text, str) and RUN_ID_PATTERN.fullmatch(text) is not None


def is_node_name(text: object) -> bool:
    return isinstance(text, str) and NODE_PATTERN.fullmatch(text) is not None


def validated_paths(workdir: str, run_id: object, node: object) -> RunPaths:
    """Return the paths of a run that a message names.

    Raises:
        ValueError: It is no legal run id or node name.
    """
    if not is_run_id(run_id) or not is_node_name(node):
        raise ValueError(f"{run_id!r} of {node!r} is no run")
    return RunPaths(workdir, str(run_id), str(node))


class RunPaths:
    """The paths of a run on one host, `WORKDIR/runs/RUN_ID/NODE`: on purpose one per file."""

    def __init__(self, workdir: str, run_id: str, node: str) -> None:
        self.root = posixpath.join(workdir, "runs", run_id, node)
        self.order = posixpath.join(self.root, "order.json")
        self.info = posixpath.join(self.root, "run.json")
        self.plan = posixpath.join(self.root, "plan.json")
        self.config = posixpath.join(self.root, "config.yaml")
        self.owner_file = posixpath.join(self.root, "owner.json")
        self.events = posixpath.join(self.root, EVENTS_FILE)
        self.supervisor_log = posixpath.join(self.root, "supervisor.log")
        self.stop_marker = posixpath.join(self.root, "stop_requested")
        self.relaunch_marker = posixpath.join(self.root, "relaunch_pending")
        self.ballast = posixpath.join(self.root, "ballast")
        self.last_ballast = posixpath.join(self.root, "ballast.last")
        self.work = posixpath.join(self.root, "work")
        self.checked_out = posixpath.join(self.root, "checked_out")
        self.shim = posixpath.join(self.root, "rank.py")
        self.rank_facts = posixpath.join(self.root, "rank_facts.py")
        self.spawner = posixpath.join(self.root, "spawner.py")
        self.home = posixpath.join(self.root, "home")
        self.site = posixpath.join(self.root, "site")
        self.preload = posixpath.join(self.root, "preload.py")
        self.preload_package = posixpath.join(self.root, PRELOAD_PACKAGE)

    def attempt_folder(self, number: int) -> str:
        return posixpath.join(self.root, f"attempt_{number}")

    def samples(self, attempt: int) -> str:
        return posixpath.join(self.attempt_folder(attempt), SAMPLES_FILE)

    def stream_log(self, attempt: int, source: str, stream: str) -> str:
        """Return the log file of `source` ("rank_3" or `PROGRAM_LOG`) and `stream`."""
        return posixpath.join(self.attempt_folder(attempt), f"{source}.{stream}")


def local_log_name(attempt: int, source: str, stream: str) -> str:
    """Return the path of a log below its node's folder in the controller's record."""
    return local_name(attempt, f"{source}.{stream}")


def local_name(attempt: int, name: str) -> str:
    """Return the path of a file of an attempt below its node's folder in that record."""
    return posixpath.join(f"attempt_{attempt}", name) if attempt else name


def is_rank_source(source: str) -> bool:
    return source.startswith("rank_")


def source_rank(source: str) -> int:
    return int(source.rpartition("_")[2])


def rank_source(rank: int) -> str:
    """Return the stem of the files of a global rank."""
    return f"rank_{rank:d}"


def tasks_folder(workdir: str, tasks_hash: str) -> str:
    return posixpath.join(workdir, "tasks", tasks_hash)


def release_file(workdir: str, name: str) -> str:
    return posixpath.join(workdir, RELEASES, name)


def content_file(workdir: str, digest: str) -> str:
    return posixpath.join(workdir, POOL, digest)


def kept_folder(workdir: str, place: str, name: str) -> str:
    """Return the folder on a host to which the link `name` of a task leads that keeps it."""
    return posixpath.join(workdir, KEEP, place, name)


def log_order(
    name: str, ranks: Optional[AbstractSet[int]], *, has_others: bool
) -> Optional[Tuple[int, int]]:
    """Return the place of a log, rank after rank, among those of some ranks (None: of all).

    None is for what does not belong there. With `has_others`, their metrics and `RUN_LOGS` do.
    """
    match = RANK_LOG.fullmatch(name)
    if match is None:
        return (-1, 0) if has_others and name in RUN_LOGS else None
    rank = int(match[1])
    streams = (*STREAMS, METRICS_STREAM) if has_others else STREAMS
    is_wanted = match[2] in streams and (ranks is None or rank in ranks)
    return (rank, streams.index(match[2])) if is_wanted else None
