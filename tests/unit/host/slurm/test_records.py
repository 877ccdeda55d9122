"""Records of a job's run: what its login node adds to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runner.core.model.plan import Order
from runner.core.model.slurm import JobStatus
from runner.core.protocol.events import (
    ENDED_BY_SCHEDULER,
    Ended,
    EventBody,
    JobEnded,
    RankExited,
    RanksSignalled,
    StopCause,
    Stopping,
)
from runner.core.protocol.paths import JobPaths, RunPaths
from runner.core.protocol.states import State
from runner.host.slurm import recovery, shared_files
from runner.host.storage.run_folder import EventLog, has_ended, read_events

RUN_ID = "0314-1592-digits-65a3"


class Node:
    def __init__(self, workdir: Path, name: str = "a", **context: Any) -> None:
        self.folder = RunPaths(str(workdir), RUN_ID, name)
        self.order = Order(RUN_ID, name, 0, str(workdir), ("/bin/true",), {}, "/", ())
        self.paths = JobPaths(str(workdir), RUN_ID)
        Path(self.folder.attempt_folder(0)).mkdir(parents=True)
        Path(self.paths.start(0).root).mkdir(parents=True, exist_ok=True)
        Path(self.paths.start(0).nodes).write_text("a\nb\n")
        shared_files.write(self.paths.context, {"kill_wait_s": 0.0, **context})
        self.journal = EventLog(self.folder, self.order)
        self.journal.set_state(State.RUNNING)

    def record(self, *bodies: EventBody) -> Node:
        for body in bodies:
            self.journal.append(body)
        return self

    def end(self) -> Node:
        self.journal.set_state(State.STOPPING)
        self.journal.finalise(Ended(State.STOPPED, "over"))
        return self

    @property
    def bodies(self) -> list[EventBody]:
        return [event.body for event in read_events(self.folder)]


BY_SLURM = Stopping(ENDED_BY_SCHEDULER, StopCause.SCHEDULER)
REQUEUED: dict[str, Any] = {"spec": {"cluster": {"slurm": {"requeue": True}}}}


@pytest.mark.parametrize(
    ("bodies", "context", "needed"),
    [
        ([BY_SLURM], {}, True),
        ([RankExited(0, signal=9)], {}, True),
        ([RankExited(0, signal=15), Stopping("told to", StopCause.USER)], {}, False),
        ([RanksSignalled(10, 2), RankExited(0, code=0)], REQUEUED, True),
        ([RanksSignalled(10, 2), RankExited(0, code=0)], {}, False),
        ([BY_SLURM, JobEnded("7", "CANCELLED")], {}, False),
    ],
)
def test_when_slurm_is_asked_for_a_reason(
    tmp_path: Path, bodies: list[EventBody], context: dict[str, Any], *, needed: bool
) -> None:
    """Where it may know more than the nodes, and has not been asked."""
    node = Node(tmp_path, **context).record(*bodies).end()
    assert recovery.needs_reason(node.folder, node.order) == needed


@pytest.mark.parametrize(
    ("state", "proctrack", "reason", "cause", "verified"),
    [
        ("NODE_FAIL", "proctrack/cgroup", ENDED_BY_SCHEDULER, StopCause.SCHEDULER, True),
        ("TIMEOUT", "proctrack/linuxproc", ENDED_BY_SCHEDULER, StopCause.SCHEDULER, False),
        (
            "UNKNOWN",
            "proctrack/cgroup",
            "its supervisor ended without a word",
            StopCause.DEATH,
            True,
        ),
    ],
)
def test_a_record_without_an_end_is_completed(
    tmp_path: Path, state: str, proctrack: str, reason: str, cause: StopCause, *, verified: bool
) -> None:
    """Once, by what Slurm says; it is a proof where Slurm tracks processes by cgroup."""
    node = Node(tmp_path, proctrack=proctrack)
    for _ in range(2):
        recovery.complete(node.folder, node.order, JobStatus("7", state))
    assert has_ended(node.folder, node.order)
    assert node.bodies == [
        Stopping(reason, cause),
        JobEnded("7", state),
        Ended(State.FAILED, reason, verified=verified),
    ]
