"""Where things lie: on the hosts, and in the controller's run folder."""

from __future__ import annotations

import posixpath

FORMAT = 1
"""Version of the run folder on the hosts."""

PROGRAM = "program"
"""The stem of the files of the program itself (torchrun), beside `rank_R`."""

CODE = "code"
"""The folder of a release that holds the tree; beside it is the manifest."""

STREAMS = ("out", "err")


class RunFolder:
    """One run on one host: `WORKDIR/runs/RUN_ID/NODE`."""

    def __init__(self, workdir: str, run_id: str, node: str) -> None:
        self.root = posixpath.join(workdir, "runs", run_id, node)
        self.format = posixpath.join(self.root, "format")
        self.order = posixpath.join(self.root, "order.json")
        self.state = posixpath.join(self.root, "state.json")
        self.events = posixpath.join(self.root, "events.jsonl")
        self.log = posixpath.join(self.root, "supervisor.log")
        self.ballast = posixpath.join(self.root, "ballast")
        self.work = posixpath.join(self.root, "work")
        self.shim = posixpath.join(self.root, "rank")
        self.shim_code = posixpath.join(self.root, "rank.py")

    def attempt(self, number: int) -> str:
        """The folder of one start."""
        return posixpath.join(self.root, f"attempt_{number}")

    def stream(self, attempt: int, source: str, stream: str) -> str:
        """The log file of `source` ("rank_3" or `PROGRAM`), `stream` "out" or "err"."""
        return posixpath.join(self.attempt(attempt), f"{source}.{stream}")


def rank_source(rank: int) -> str:
    """The stem of the files of one global rank."""
    return f"rank_{rank}"


def tasks_folder(workdir: str, tasks_hash: str) -> str:
    """Where the shipped tasks of that content lie on a host."""
    return posixpath.join(workdir, "tasks", tasks_hash)


def releases_folder(workdir: str) -> str:
    """Where releases of the user's code lie on a host."""
    return posixpath.join(workdir, "releases")


def release_folder(workdir: str, name: str) -> str:
    """Where one release lies: its manifest, and the tree in `code/`."""
    return posixpath.join(releases_folder(workdir), name)
