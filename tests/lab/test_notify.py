"""Notifications on real hosts: who tells of a run, once, and that nothing depends on it."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.lab.lab import Lab
from tests.lab.launching import Launcher
from tests.lab.slurm import HPC, HpcLauncher, Slurm
from tests.lab.waiting import wait_until, wait_until_idle

FAILS_ON_NODE2 = ("node2", 1, "rank 1 on node2 exited with 7")


def command(folder: Path) -> str:
    """A command that keeps what it is told, in a folder that all hosts and the launch see."""
    variables = '"$RUNNER_RUN_ID $RUNNER_EVENT $RUNNER_STATE"'
    new = f"new=$(mktemp {folder}/new.XXXXXX)"
    return f"{new}; cat > $new; echo {variables} >> $new; mv $new {folder}/told.$(date +%s%N)"


def notify(*targets: str) -> str:
    return f"notify={json.dumps(targets)}"


def told(folder: Path) -> list[dict[str, Any]]:
    texts = (path.read_text() for path in sorted(folder.glob("told.*")))
    found: list[dict[str, Any]] = []
    for text in texts:
        message, variables = text.splitlines()
        found.append(json.loads(message))
        assert variables == " ".join(found[-1][key] for key in ("run_id", "event", "state"))
    return found


def events_told(folder: Path) -> list[tuple[str, str, str]]:
    """The same, in short: the event, the state, who told."""
    return [(each["event"], each["state"], each["told_by"]) for each in told(folder)]


def failure_of(message: dict[str, Any]) -> tuple[str, int, str]:
    failure = message["first_failure"]
    return failure["node"], failure["rank"], failure["reason"]


def test_a_launch_tells_once_and_no_target_changes_its_end(on_lab: Launcher, steps: Path) -> None:
    """Of two targets one fails, the other hangs and is cut off; the verdict stays."""
    hanging = f"echo $$ > {steps}/pid; sleep 600"
    targets = notify(command(steps), "echo no such channel; exit 3", hanging)
    failed = on_lab.run_ranks("fail=1:7 sleep=600", "cluster=lab", "grace_s=1", targets)
    assert failed.code == 1, failed
    (message,) = told(steps)
    assert (message["v"], message["event"], message["told_by"]) == (1, "failure", "launch")
    assert (message["state"], message["exit_code"]) == ("failed", 1)
    assert (message["run_id"], message["task"]) == (failed.folder.name, "rank")
    assert (message["cluster"], message["nodes"]) == ("lab", ["node1", "node2"])
    assert failure_of(message) == FAILS_ON_NODE2
    assert "failed after" in message["text"]
    assert message["hint"] == f"python -m runner why --run {failed.folder.name}"
    assert 'the notification "echo no such channel; exit 3" failed: exited with 3: no such' in (
        failed.err
    )
    assert "failed: it was killed: it took longer than 30 s" in failed.err
    assert not Path(f"/proc/{(steps / 'pid').read_text().strip()}").exists()
    recorded = [event for event in failed.events if event["kind"] == "notification_failed"]
    assert [(event["node"], event["event"]) for event in recorded] == [("", "failure")] * 2
    assert "no such channel" in on_lab(*message["hint"].split()[3:]).err


def test_a_run_that_nobody_watches_is_told_of_by_its_hub(
    lab: Lab, on_lab: Launcher, steps: Path
) -> None:
    """Detached, or left by a launch that died: once, by the master, which goes on record."""
    where = ("cluster=lab", "grace_s=1", notify(command(steps), "exit 5"))
    failing = on_lab.run_ranks("sleep=1 fail=1:7 sleep=600", *where, "detach=true")
    assert failing.code == 0, failing
    assert "  notify: node1 tells, and runs the commands\n" in failing.err
    wait_until(lambda: told(steps), "the failure")
    words = on_lab.rank_overrides("print=up", "sleep=600")
    left = on_lab.start(*words, *where, "disconnect_s=15")
    left.until_printed("up", 2)
    left.process.send_signal(signal.SIGKILL)
    wait_until(lambda: len(told(steps)) > 1, "the end for want of a controller", 40)
    wait_until_idle(lab)
    assert events_told(steps) == [("failure", "failed", "node1"), ("failure", "stopped", "node1")]
    first, second = told(steps)
    assert (first["exit_code"], failure_of(first)) == (1, FAILS_ON_NODE2)
    assert "failed after" in first["text"]
    assert ": rank 1 on node2 exited with 7" in first["text"]
    assert first["hint"] == f"python -m runner why --run {failing.folder.name}"
    assert second["exit_code"] == 1
    said = on_lab("why", "--cluster", "lab", "--run", failing.folder.name)
    assert said.code == 0, said
    assert 'node1: the notification "exit 5" failed: exited with 5' in said.err


@pytest.mark.slurm
def test_a_job_of_slurm_is_told_of_by_its_launch(
    slurm: Slurm, hpc: HpcLauncher, steps: Path
) -> None:
    """Slurm ends whatever outlives it: that is not over before all are told."""
    failed = hpc.run_ranks("fail=1:7 sleep=300", HPC, notify(f"sleep 2; {command(steps)}"))
    assert failed.code == 1, failed
    wait_until(lambda: told(steps), "the failure")
    wait_until(lambda: not slurm.jobs(), "the end of the job")
    assert events_told(steps) == [("failure", "failed", "launch")]
    assert failure_of(told(steps)[0]) == FAILS_ON_NODE2
