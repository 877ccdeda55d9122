"""Runs of jobs as a login node lists them: pending, begun, vanished, and about to start again."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runner.core.codec import decode, encode
from runner.core.model.plan import Order
from runner.core.model.run_info import HostRunStatus, RunInfo, aggregate_state
from runner.core.model.slurm import JobStatus
from runner.core.protocol.events import Ended
from runner.core.protocol.frames import Frame
from runner.core.protocol.paths import JobPaths, RunPaths
from runner.core.protocol.states import State
from runner.host.agent.runs import Handler
from runner.host.agent.server import AgentContext
from runner.host.process.event_loop import run_steps
from runner.host.slurm import job, shared_files
from runner.host.storage.run_folder import EventLog

RUN_ID = "0314-1592-digits-65a3"
PENDING = JobStatus("7", "PENDING", "Priority", name=RUN_ID)


class World:
    """A workdir with the job of one run, and a queue."""

    def __init__(self, workdir: Path) -> None:
        self.workdir = workdir
        self.queue: list[JobStatus] = []
        self.problem, self.state = "", "UNKNOWN"
        self.paths = JobPaths(str(workdir), RUN_ID)
        Path(self.paths.root).mkdir(parents=True)
        Path(self.paths.job_id).write_text("7")
        self.write_context(requeue=False)

    def write_context(self, *, requeue: bool) -> None:
        """Write what was submitted."""
        info = RunInfo(RUN_ID, "hpc", "digits", launched_by="ada@desk")
        slurm = {"nnodes": 2, "requeue": requeue}
        context = {"info": encode(info), "spec": {"slurm": slurm}}
        shared_files.write(self.paths.context, context)

    def queued(self) -> Generator[None, None, Any]:
        """Answer what is in the queue."""
        yield
        return self.queue, self.problem

    def status(self, paths: JobPaths) -> Generator[None, None, JobStatus]:
        """Answer what is not in the queue."""
        yield
        assert paths.run == self.paths.run
        return JobStatus("7", self.state)

    def begin(self, node: str) -> None:
        """Have a node begin the run, and end it."""
        folder = RunPaths(str(self.workdir), RUN_ID, node)
        Path(folder.attempt_folder(0)).mkdir(parents=True)
        order = Order(RUN_ID, node, 0, str(self.workdir), ("/bin/true",), {}, "/", ())
        journal = EventLog(folder, order)
        journal.set_state(State.RUNNING)
        journal.set_state(State.STOPPING)
        journal.finalise(Ended(State.STOPPED, "ended by Slurm"))

    def listed(self, run_id: str = RUN_ID) -> dict[str, HostRunStatus]:
        """What the login node lists, by node."""
        answers: list[dict[str, Any]] = []
        context: Any = SimpleNamespace(
            workdir=str(self.workdir), answer=lambda *_, **data: answers.append(data)
        )
        frame = Frame("runs", {"id": 1, "node": "login", "run_id": run_id})
        run_steps(Handler(cast("AgentContext", context)).on_runs(frame))
        found = [decode(HostRunStatus, run) for run in answers[0]["runs"]]
        return {status.node: status for status in found}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """One whose job has begun nothing."""
    made = World(tmp_path)
    monkeypatch.setattr(job, "queued", made.queued)
    monkeypatch.setattr(job, "status", made.status)
    return made


def test_a_pending_run_is_its_job(world: World) -> None:
    """The login node speaks for it: with how many nodes it asks for, and none that has begun."""
    world.queue = [JobStatus("77", "RUNNING"), PENDING]
    (status,) = world.listed().values()
    assert (status.node, status.job, status.is_active) == ("login", PENDING, True)
    assert (status.info.nnodes, status.info.world_size) == (2, 0)
    assert aggregate_state({"login": status}) == "pending (Priority)"
    assert not status.relaunch_pending
    assert list(world.listed("")) == ["login"]


def test_an_ended_run_is_as_recorded(world: World) -> None:
    """Slurm does not know its job any more; the login node speaks for the nodes."""
    world.begin("n1")
    (status,) = world.listed().values()
    assert (status.node, status.state, status.here) == ("n1", State.STOPPED, True)
    assert (status.job, status.alive) == (JobStatus("7", name=RUN_ID), False)


def test_the_secrets_of_a_job_that_is_over_are_removed(world: World) -> None:
    """Slurm may have killed its script."""
    secrets = Path(world.paths.secrets)
    secrets.touch()
    world.queue = [PENDING]
    world.listed()
    world.queue, world.problem = [], "late"
    world.listed()
    assert secrets.exists()
    world.problem = ""
    world.write_context(requeue=True)
    world.state = "PREEMPTED"  # and it is to start again, though it is in no list
    world.listed()
    assert secrets.exists()
    world.state = "UNKNOWN"
    world.listed()
    assert not secrets.exists()


def test_a_job_that_waits_again_is_a_relaunch(world: World) -> None:
    """All of it has ended on its nodes, and Slurm is asked all the same: it is to be stopped."""
    world.write_context(requeue=True)
    world.begin("n1")
    world.queue = [PENDING]
    status = world.listed()["n1"]
    assert (status.relaunch_pending, status.is_queued, status.is_active) == (True, True, False)
    assert aggregate_state({"n1": status}) == "pending (Priority)"
    world.queue = []
    assert aggregate_state(world.listed()) == "stopped"
