"""Verbs about a run, from any machine: detach, ps, logs, attach, pull and stop."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing

import pytest

from tests.lab.forkserver import RUNNER_ARGV
from tests.lab.inspecting import events_by_node, guardian_and_supervisor, own_processes
from tests.lab.lab import Lab
from tests.lab.launching import Launcher
from tests.lab.terminal import Terminal
from tests.lab.waiting import PATIENCE, wait_until, wait_until_ended, wait_until_idle

pytestmark = [pytest.mark.promise(10)]

Start = Callable[..., str]
NODES = ("node1", "node2")


@pytest.fixture
def detached(on_lab: Launcher) -> Start:

    def start(*words: str, overrides: tuple[str, ...] = ()) -> str:
        done = on_lab.succeed(
            *("cluster=lab", "detach=true", "grace_s=1", *overrides),
            *on_lab.rank_overrides("print=up", *words),
        )
        return done.folder.name

    return start


def await_end_of_agents(lab: Lab) -> None:
    """Wait until guardian and supervisor alone are left, which an agent outlives by a moment."""
    wait_until(
        lambda: all(len(own_processes(lab, node)) == 2 for node in NODES), "the end of its agents"
    )


def test_a_detached_run_outlives_everything(lab: Lab, on_lab: Launcher) -> None:
    """Its launch returns at once with what to do next; with no session left, it ends well."""
    done = on_lab.succeed(
        "cluster=lab", "detach=true", *on_lab.rank_overrides("wait=/dev/shm/end", "print=over")
    )
    run_id = done.folder.name
    assert f"run {run_id} goes on without this terminal" in done.err
    assert f"python -m runner attach --run {run_id}\n" in done.err
    await_end_of_agents(lab)
    listed = on_lab("ps", "--cluster", "lab")
    assert re.search(rf"^{run_id} +rank ", listed.out, re.MULTILINE), listed
    assert "running" in listed.out
    for node in NODES:
        lab[node].sh("touch /dev/shm/end")
    for _, record in wait_until_ended(lab, run_id, NODES):
        assert "detached" in [event["kind"] for event in record]
        assert record[-1]["state"] == "succeeded"
    assert run_id not in on_lab("ps", "--cluster", "lab").out
    listed = on_lab("ps", "--cluster", "lab", "--all", "--json")
    (row,) = [row for row in json.loads(listed.out)["runs"] if row["run_id"] == run_id]
    assert (row["state"], row["nodes"], row["ended"]) == ("succeeded", [*NODES], True)
    logs = on_lab("logs", "--cluster", "lab", "--tail", "1")
    assert sorted(logs.out.splitlines()) == [f"[node{n + 1}:{n}] over" for n in range(2)]
    on_lab.succeed("pull", run_id)
    assert json.loads((done.folder / "result.json").read_text())["state"] == "succeeded"


def test_a_launch_that_dies_before_it_detaches_leaves_no_run_for_ever(
    lab: Lab, on_lab: Launcher
) -> None:
    """Until it has left, its hosts wait for it as for any other."""
    words = on_lab.rank_overrides("print=up", "sleep=600")
    launch = on_lab.start("cluster=lab", "detach=true", "disconnect_s=10", *words)
    runs = lab["node1"].home / ".runner" / "runs"
    launch.until(lambda: [*runs.glob("*/node1/order.json")], "the first order")
    launch.kill()
    wait_until_idle(lab)


def test_logs_are_chosen(on_lab: Launcher, detached: Start, lab: Lab) -> None:
    """By rank, node and number; while it is on and afterwards; of the latest run."""
    run_id = detached("lines=500", "err=oops", "wait=/dev/shm/end", "print=over")

    def logs(*flags: str) -> list[str]:
        done = on_lab.succeed("logs", "--cluster", "lab", *flags)
        return done.out.splitlines()

    wait_until(lambda: len(logs()) == 2 * 501, "all lines", 60)
    assert [line[:9] for line in logs("--rank", "1", "--tail", "2")] == ["[node2:1]"] * 2
    assert len(logs("--node", "node2")) == 501
    assert len(logs("--rank", "0-1", "--tail", "1")) == 2
    follower = on_lab.start("logs", "--cluster", "lab", "--follow", "--tail", "1", "--run", run_id)
    follower.until(lambda: follower.out.count("\n") == 2, "the tails")
    for node in NODES:
        lab[node].sh("touch /dev/shm/end")
    done = follower.wait(30)
    assert done.code == 0, done
    assert done.out.count("over") == 2
    bad = on_lab("logs", "--cluster", "lab", "--rank", "9")
    assert (bad.code, "has ranks 0 to 1, and no rank 9" in bad.err) == (2, True), bad
    bad = on_lab("logs", "nothing", "--cluster", "lab")
    assert (bad.code, "no run nothing on the hosts of lab" in bad.err) == (3, True), bad
    bad = on_lab("logs", "--run", "../x", "--cluster", "lab")
    assert (bad.code, "--run: '../x' is not a run id" in bad.err) == (2, True), bad


@pytest.mark.all
def test_somebody_who_reads_keeps_no_run_alive(lab: Lab, on_lab: Launcher) -> None:
    """A `logs --follow` in a forgotten window is no controller."""
    run = on_lab.start(
        "cluster=lab", "disconnect_s=10", *on_lab.rank_overrides("print=up", "sleep=600")
    )
    run.until_printed("] up", 2)
    reader = on_lab.start("logs", "--cluster", "lab", "--follow")
    reader.until(lambda: reader.out.count("] up") == 2, "the lines")
    run.kill()
    wait_until_idle(lab)
    assert reader.wait().code == 0


@pytest.mark.parametrize("dead", ["supervisor", "both", "stopped"])
def test_stop_works_whoever_is_dead(lab: Lab, on_lab: Launcher, detached: Start, dead: str) -> None:
    """Deaf ranks with deaf daemons: 0 processes on every node, by a look from outside as well."""
    run_id = detached("daemon", "deaf", "print=deaf", "sleep=600")
    guardian, supervisor = guardian_and_supervisor(lab, "node2")
    # The agent of the launch would end the run of a dead supervisor, as one of `stop` has to.
    await_end_of_agents(lab)
    homes = [lab[node].home for node in NODES]
    pattern = f".runner/runs/{run_id}/*/attempt_0/rank_*.out"
    wait_until(
        lambda: sum("deaf" in log.read_text() for home in homes for log in home.glob(pattern)) == 2,
        "deaf ranks",
    )
    if dead == "stopped":
        lab["node2"].kill(supervisor.pid, signal.SIGSTOP)
    elif dead == "supervisor":
        lab["node2"].kill(supervisor.pid)
    else:
        # At once, or the one ends the run when it sees the other die.
        lab["node2"].sh(f"kill -STOP {supervisor.pid} {guardian.pid}")
        lab["node2"].sh(f"kill -KILL {supervisor.pid} {guardian.pid}")
        assert on_lab("logs", run_id, "--cluster", "lab").out.count("] up") == 2
        assert lab["node2"].leftovers()  # who reads changes nothing
        listed = on_lab("ps", "--all", "--cluster", "lab", "cluster.only=[node2]")
        assert "broken" in listed.out, listed
        why = ("why", "--run", run_id, "--cluster", "lab")
        wait_until(lambda: f"{run_id} is broken: " in on_lab(*why).err, "the end on node1")
        assert on_lab(*why).err.endswith(f"runner stop --run {run_id} --cluster lab\n")
    done = on_lab.succeed("stop", "--run", run_id, "--cluster", "lab", seconds=60)
    assert done.out.count("  0 processes") + 2 * done.out.count("on each") >= 2, done
    assert f"run {run_id}: no process is left" in done.out
    assert lab.wait_idle() == {}
    on_lab.succeed("stop", "--run", run_id, "--cluster", "lab")


@pytest.mark.slow
def test_whoever_joins_a_run_ends_with_it(lab: Lab, on_lab: Launcher, detached: Start) -> None:
    """Also where a host of it is off by now: that is said, and is exit code 5."""
    run_id = detached("print=over")
    assert len([*wait_until_ended(lab, run_id, NODES)]) == 2
    lab["node2"].unplug()
    joined = on_lab("attach", "--run", run_id, "--cluster", "lab")
    assert joined.code == 5, joined
    assert "node2: it could not be reached: " in joined.err
    assert joined.out.count("] over") == 1
    followed = on_lab("logs", "--follow", "--run", run_id, "--cluster", "lab")
    assert followed.code == 3, followed
    looked = on_lab("logs", "--run", run_id, "--cluster", "lab")
    assert (looked.code, looked.out.count("] over")) == (3, 1), looked
    assert "node2: " in looked.err
    lab["node2"].plug()


@pytest.mark.all
def test_a_reader_ends_with_its_own_reader(on_lab: Launcher, detached: Start) -> None:
    """`logs --follow | head` is over when head is, and the run goes on; `attach` as well."""
    run_id = detached("lines=200000", "count=100000/0.001")
    for verb in ("logs --follow", "logs", "attach"):
        line = f"{sys.executable} -m runner {verb} --run {run_id} --cluster lab | head -3"
        done = subprocess.run(
            ["bash", "-c", f"{line}; exit ${{PIPESTATUS[0]}}"],
            cwd=on_lab.folder,
            env=on_lab.env,
            capture_output=True,
            text=True,
            check=False,
            timeout=60 * PATIENCE,
        )
        assert done.returncode == 128 + signal.SIGPIPE, done
        assert len(done.stdout.splitlines()) == 3
    assert re.search(rf"^{run_id} +rank ", on_lab("ps", "--cluster", "lab").out, re.MULTILINE)
    assert on_lab("stop", "--run", run_id, "--cluster", "lab").code == 0


@pytest.mark.promise(6)
@pytest.mark.over_openssh
def test_attach_goes_on_where_a_killed_controller_ended(lab: Lab, on_lab: Launcher) -> None:
    """The same screen and record as a launch; every byte of every rank is here once."""
    run = on_lab.start(
        *("cluster=lab", "grace_s=1"), *on_lab.rank_overrides("count=1500/0.004", "print=over")
    )
    run.until(lambda: run.out.count("line 300") >= 2, "some lines")
    run.kill()
    done = on_lab.succeed("attach", "--cluster", "lab")
    assert f"run {run.run_id} succeeded" in done.err
    for rank in range(2):
        node = f"node{rank + 1}"
        there = lab[node].sh(f"cat ~/.runner/runs/{run.run_id}/{node}/attempt_0/rank_{rank}.out")
        here = (run.folder / "logs" / node / f"rank_{rank}.out").read_text()
        assert here == there
        prefix = f"[{node}:{rank}] "
        shown = [line[len(prefix) :] for line in done.out.splitlines() if line.startswith(prefix)]
        assert shown == there.splitlines()
    assert json.loads((run.folder / "result.json").read_text())["state"] == "succeeded"
    events = (run.folder / "events.jsonl").read_text().splitlines()
    assert len({*events}) == len(events)


def test_ctrl_c_while_attached_detaches(lab: Lab, on_lab: Launcher) -> None:
    """At a terminal too, from wherever; nobody comes back, and how to stop the run is printed."""
    ranks = on_lab.rank_overrides("print=up", "sleep=600")
    launched = on_lab.start("cluster=lab", "grace_s=1", *ranks)
    launched.until_printed("] up", 2)
    run_id = launched.run_id
    here = on_lab.at_another_machine("elsewhere")
    (here.folder / "conf").symlink_to(on_lab.conf)
    argv = [*RUNNER_ARGV, "attach", "--cluster", "lab", "ui=plain"]
    with closing(Terminal(argv, here.folder, here.env)) as terminal:
        terminal.until(r"(?s)\] up.*\] up")
        launched.kill()
        terminal.process.send_signal(signal.SIGINT)
        terminal.until(rf"run {run_id} goes on without this terminal", rf"stop +--run {run_id}")
        assert terminal.end() == 0, terminal.shown
    listed = json.loads(on_lab("ps", "--all", "--cluster", "lab", "--json").out)["runs"]
    (row,) = [row for row in listed if row["run_id"] == run_id]
    assert row["state"] == "running"
    for node, record in events_by_node(lab, run_id, NODES):
        assert "detached" in [event["kind"] for event in record], node
    assert on_lab("stop", "--run", run_id, "--cluster", "lab").code == 0


def test_outputs_come_home(lab: Lab, on_lab: Launcher) -> None:
    """With the end of a launch, or by `pull`; what is here is not fetched again."""
    words = ("touch=ckpt_RANK.pt", "touch=scratch_RANK", "print=over")
    (on_lab.folder / "old.pt").write_text("of the project, and unchanged")
    done = on_lab.succeed("cluster=lab", "task.outputs=['*.pt']", *on_lab.rank_overrides(*words))
    found = sorted(path.name for path in (done.folder / "outputs").rglob("*.pt"))
    assert found == [f"ckpt_{rank}.pt" for rank in range(2)]
    assert not [*(done.folder / "outputs").rglob("scratch*")]
    assert "succeeded" in done.err.partition("pulled 2 files")[0], "the verdict waits for no output"
    assert "pulled 2 files" in done.err
    named = on_lab.succeed("pull", done.folder.name, "scratch_*")
    assert "pulled 2 files" in named.out
    assert f"into runs/{done.folder.name}/outputs, from node[1-2]" in named.out
    assert len([*(done.folder / "outputs").rglob("scratch_*")]) == 2

    never = on_lab.succeed(
        *("cluster=lab", "task.outputs=['*.pt']", "pull_outputs=never"),
        *on_lab.rank_overrides(*words),
    )
    shutil.rmtree(never.folder / "logs")
    assert on_lab("why", "--cluster", "lab").code == 0
    assert [*(never.folder / "logs").rglob("rank_*.out")]
    assert not (never.folder / "outputs").exists()
    on_lab.succeed("pull", "--run", never.folder.name, "--cluster", "lab")
    assert len([*(never.folder / "outputs").rglob("*.pt")]) == 2
    assert (never.folder / "hosts" / "node2" / "order.json").exists()
    assert "nothing new" in on_lab("pull", "--cluster", "lab").out
    assert lab.wait_idle() == {}
