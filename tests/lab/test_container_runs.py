"""Runs in containers of docker hold what they hold without: logs, stacks, causes, verbs, memory."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.causing import etcd_on
from tests.lab.engines import DOCKER, FOLDER, Daemon, daemons, missing, mounts, overrides
from tests.lab.inspecting import guardian_and_supervisor, proven_nodes
from tests.lab.lab import Lab, LabFactory
from tests.lab.launching import PROGRAMS, Controller, Launcher
from tests.lab.waiting import wait_until

pytestmark = pytest.mark.containers

PLAIN = ("cluster=lab", "task.entry=plain", "grace_s=1")
TWO = "cluster.only=[node1,node2]"


@pytest.fixture(scope="module")
def docker_lab(lab_factory_for_session: LabFactory) -> Iterator[Lab]:
    """Three hosts."""
    if reason := missing():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)
    with lab_factory_for_session(n=3) as lab:
        yield lab


@pytest.fixture(scope="module")
def docker(
    docker_lab: Lab, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Daemon]]:
    """Their daemons; ranks survive these."""
    yield from daemons(docker_lab, tmp_path_factory.mktemp("docker"), survives=True)


@pytest.fixture
def user(docker_lab: Lab, docker: dict[str, Daemon], launcher: Launcher) -> Iterator[Launcher]:
    """A user whose conf/ names these hosts; nothing of theirs is left there in the end."""
    docker_lab.write_cluster(launcher.conf)
    yield launcher
    docker_lab.repair()
    for daemon in docker.values():
        daemon.revive()
    left = {name: daemon.containers() for name, daemon in docker.items()}
    for daemon in docker.values():
        daemon.clear()
    crashes = docker_lab.crashes()
    docker_lab.reset_homes()
    assert not any(left.values()), left
    assert not crashes


TALKS = """
import os, sys
for n in range(20_000):
    print(os.environ["RANK"], n, "x" * 80)
    print(os.environ["RANK"], n, "y" * 80, file=sys.stderr)
"""


def test_no_line_is_lost_and_none_out_of_order(user: Launcher) -> None:
    """Many thousand of each rank, on both streams: on the console and on record."""
    (user.folder / "talks.py").write_text(TALKS)
    done = user(*PLAIN, TWO, *overrides(), "task.script=talks.py")
    assert done.code == 0, done.err[-2000:]
    for rank, node in enumerate(("node1", "node2")):
        mark = f"[{node}:{rank}] "
        for stream, letter, console in (("out", "x", done.out), ("err", "y", done.err)):
            expected = [f"{rank} {n} {letter * 80}" for n in range(20_000)]
            assert done.log(node, rank, stream).splitlines() == expected
            shown = [line for line in console.splitlines() if line.startswith(mark)]
            assert [line.removeprefix(mark) for line in shown] == expected


@pytest.mark.parametrize("whose", [pytest.param("login", marks=pytest.mark.all), "image"])
def test_stacks_and_logs_of_ranks(user: Launcher, docker_lab: Lab, whose: str) -> None:
    """As the user of the login, and as that of the image, who is root."""
    words = (f"task.script={PROGRAMS / 'hanging.py'}", "task.args_style=raw", "task.args=[wait,1]")
    running = user.start(*PLAIN, TWO, *overrides(f"container.user={whose}"), *words)
    running.until_printed("waiting")
    running.until_printed("loading")
    shown = user("stacks", "--cluster", "lab")
    assert shown.code == 0, shown
    assert "rank 1 on node2, innermost first:\n    load_batch" in shown.out, shown
    assert "rank 0 on node1, innermost first:\n    wait  " in shown.out
    for name in ("node1", "node2"):
        docker_lab[name].sh('for work in ~/.runner/runs/*/*/work; do touch "$work/go"; done')
    done = running.wait()
    assert done.code == 0, done
    assert done.log("node2", 1) == "loading\ndone\n"
    cleaned = user("clean", "--cluster", "lab", "--older-than", "0s")
    assert cleaned.code == 0, cleaned
    assert not docker_lab["node1"].sh("ls ~/.runner/runs")


COMPUTES = """
import time
def compute():
    end = time.time() + 5
    while time.time() < end: pass
def wait_for_nobody():
    time.sleep(600)
print("up", flush=True)
compute()
print("computed", flush=True)
wait_for_nobody()
"""


@pytest.mark.parametrize("whose", ["login", pytest.param("image", marks=pytest.mark.all)])
def test_ranks_that_compute_are_not_stalled(user: Launcher, whose: str) -> None:
    """They are no children of ours, and their CPU time counts; those that wait are stalled."""
    (user.folder / "computes.py").write_text(COMPUTES)
    watch = ("watch.stall_s=2", "watch.action=stop")
    inside = overrides(f"container.user={whose}")
    done = user(*PLAIN, TWO, *watch, *inside, "task.script=computes.py")
    assert done.code == 1, done
    assert done.out.count("] computed") == 2, done
    assert "first failure: no rank made progress for" in done.err
    assert "wait_for_nobody (" in done.err, done


EATS = """
import os, signal, sys, time
def eat():
    bytearray(1 << 30)
    blocks = []
    while True:
        blocks.append(b"x" * (1 << 20))
if os.environ["RANK"] == "1" and sys.argv[1] == "itself":
    eat()
elif os.environ["RANK"] == "1":
    if os.fork() == 0:
        eat()
    if os.wait()[1]:
        sys.exit("a worker died")
time.sleep(60)
"""


@pytest.mark.parametrize("who", ["itself", "child"])
def test_out_of_the_containers_memory(user: Launcher, who: str) -> None:
    """The rank is named, and that it was the limit, also where its child was killed."""
    (user.folder / "eats.py").write_text(EATS)
    limit = 'container.extra=["--memory=64m","--memory-swap=64m"]'
    words = ("task.script=eats.py", "task.args_style=raw", f"task.args=[{who}]")
    done = user(*PLAIN, TWO, *overrides(limit), *words)
    assert done.code == 1, done
    (line,) = re.findall("^first failure: .*", done.err, re.MULTILINE)
    assert line.startswith("first failure: rank 1 on node2 "), done
    assert "the memory limit of its container (67.1 MB) was reached" in line, done
    assert "container.extra" in done.err, done


def begin(user: Launcher, *words: str, more: tuple[str, ...] = ()) -> Controller:
    """Start a rank on each of two hosts that does as told and sleeps; wait until both run."""
    ranks = user.rank_overrides(*words, "print=up", "sleep=600")
    controller = user.start(*PLAIN, TWO, *overrides(), *ranks, *more)
    controller.until_printed("] up", 2)
    return controller


def runs_on(docker: dict[str, Daemon], run_id: str) -> list[str]:
    """The hosts that have a container of a run."""
    return [name for name, each in docker.items() if run_id in " ".join(each.containers())]


def test_verbs_from_elsewhere_and_two_runs_side_by_side(
    user: Launcher, docker_lab: Lab, docker: dict[str, Daemon]
) -> None:
    """One whose controller was killed is stopped; the other, detached, is followed to its end."""
    first = begin(user, "deaf", "daemon")
    words = user.rank_overrides("print=up", "wait=go", "print=done")
    second = user(*PLAIN, TWO, *overrides("detach=true"), *words).folder.name
    first.kill()
    elsewhere = user.at_another_machine("elsewhere")
    find = ("--cluster", "lab", "--config-dir", str(user.conf))
    listed = elsewhere("ps", *find)
    assert re.search(f"^{first.run_id} .*running", listed.out, re.MULTILINE), listed
    assert re.search(f"^{second} .*running", listed.out, re.MULTILINE), listed
    stopped = elsewhere("stop", "--run", first.run_id, "--yes", *find)
    assert stopped.code == 0, stopped
    assert "no process is left" in stopped.out, stopped
    assert runs_on(docker, first.run_id) == []
    assert runs_on(docker, second) == ["node1", "node2"]
    attached = elsewhere.start("attach", "--run", second, *find)
    attached.until_printed("] up", 2)
    for name in ("node1", "node2"):
        docker_lab[name].sh(f"touch ~/.runner/runs/{second}/{name}/work/go")
    done = attached.wait()
    assert done.code == 0, done
    assert done.out.count("] done") == 2
    assert elsewhere("logs", "--run", second, *find).out.count("] done") == 2
    why = elsewhere("why", "--run", first.run_id, *find)
    assert "stop requested by" in why.out, why


def test_a_daemon_that_dies_and_comes_back(
    user: Launcher, docker_lab: Lab, docker: dict[str, Daemon]
) -> None:
    """Ranks survive it, and are ended by us; `stop` removes their container once it answers.

    Only the set-up of the run finds the engine's program.
    """
    for name in ("node1", "node2"):
        docker_lab[name].sh(f"mkdir bin && ln -s {DOCKER} bin/engine")
    setup = "cluster.setup=['export PATH=$HOME/bin:$PATH']"
    controller = begin(user, "deaf", "daemon", more=("container.program=engine", setup))
    daemon = docker["node2"]
    daemon.kill()
    done = controller.wait()
    assert done.code == 5, done
    assert "docker does not say that its container is gone" in done.err, done
    assert not docker_lab["node2"].processes("rank.py")
    run = ("--run", controller.run_id, "--cluster", "lab")
    still = user("stop", *run)
    assert still.code == 5, still
    assert "docker does not say that its container is gone" in still.out + still.err, still
    daemon.start()
    assert runs_on(docker, controller.run_id) == ["node2"]
    stopped = user("stop", *run)
    assert stopped.code == 0, stopped
    assert "no process is left" in stopped.out
    assert runs_on(docker, controller.run_id) == []
    elsewhere = user.at_another_machine("elsewhere")
    for who in (user, elsewhere):
        why = who("why", *run, "--config-dir", str(user.conf))
        assert "first failure: node2: the program exited with 125" in why.out, why
        assert "could not verify" not in why.out, why
        assert proven_nodes(why.out) == 2, why
    assert controller.run_id in user("ps", "--all", "--cluster", "lab").out
    user("clean", "--cluster", "lab", "--older-than", "0s")
    assert controller.run_id not in user("ps", "--all", "--cluster", "lab").out


def test_a_secret_is_with_the_program_alone(user: Launcher, docker: dict[str, Daemon]) -> None:
    """Not in what docker shows of the container, in no file of its daemon, in no command line."""
    secret = "s3cret-hushhush"
    words = user.rank_overrides("env=TOKEN", "sleep=600")
    known = ("cluster.secrets=[TOKEN]", "task.env.KNOWN=known-hushhush")
    running = user.start(*PLAIN, TWO, *overrides(*known), *words, env={"TOKEN": secret})
    running.until_printed(f"TOKEN={secret}", 2)
    daemon = docker["node1"]
    host, (name,) = daemon.host, daemon.containers()
    look = f"{DOCKER} inspect {name}; cat /proc/[0-9]*/cmdline | tr '\\0' ' '"
    shown = host.sh(look, user="root")
    assert name in shown
    assert f"{DOCKER} start" in shown
    assert "hushhush" not in shown
    files = host.sh(f"grep -rl RUNNER_NODE {FOLDER}/root/containers", user="root")
    assert "config.v2.json" in files
    found = host.sh(f"grep -rlF hushhush {FOLDER} || true", user="root")
    assert not found
    running.send(signal.SIGINT)
    assert running.wait().code == 130


def test_a_host_off_the_network_ends_its_container(
    user: Launcher, docker_lab: Lab, docker: dict[str, Daemon]
) -> None:
    """After the lease, without a word from anybody; once back it takes part again."""
    short = ("lost_s=3", "disconnect_s=3", "cluster.ssh.connect_timeout=2")
    controller = begin(user, "deaf", "daemon", more=short)
    docker_lab["node2"].unplug()
    wait_until(lambda: not docker["node2"].containers(), "the end of the container", 60)
    assert not docker_lab["node2"].processes("rank.py")
    done = controller.wait(60)
    assert done.code == 4, done
    docker_lab["node2"].plug()
    again = user.run_ranks("print=up", *PLAIN, TWO, *overrides())
    assert again.code == 0, again


STEPS = 40


def test_relaunched_after_a_failure_and_on_a_spare(
    user: Launcher, docker: dict[str, Daemon], steps: Path
) -> None:
    """A rank fails; then the daemon of its host dies: no step is left out or done twice.

    What is left on that host `stop` removes later.
    """
    places = json.dumps([*mounts(), f"{steps}:{steps}"])
    words = json.dumps([str(steps), str(STEPS), "0.1/0.05", "fail=0:5:3"])
    controller = user.start(
        *(*PLAIN, "task.nnodes=2", "relaunch.max=2"),
        *("relaunch.backoff_s=0.5", *overrides(f"container.mounts={places}")),
        *(f"task.script={PROGRAMS / 'steps.py'}", "task.args_style=raw", f"task.args={words}"),
    )
    controller.until_printed("attempt 1 from", 2)
    controller.until_printed("] step 12", 2)
    docker["node2"].kill()
    done = controller.wait(90)
    assert done.code == 0, done
    for rank in range(2):
        counted = [line.split() for line in (steps / f"rank_{rank}").read_text().splitlines()]
        assert [int(step) for step, _, _ in counted] == list(range(STEPS))
        assert {attempt for _, attempt, _ in counted} == {"0", "1", "2"}
    first, second = done.result["past_attempts"]
    assert first["reason"].endswith("exited with 3")
    assert second["unverified"] == ["node2"], done
    assert proven_nodes(done.err) == 2
    docker["node2"].start()
    assert runs_on(docker, controller.run_id) == ["node2"]
    stopped = user("stop", "--run", controller.run_id, "--cluster", "lab")
    assert stopped.code == 0, stopped


@pytest.mark.parametrize(
    ("backend", "lost"),
    [
        pytest.param("c10d", "network", marks=pytest.mark.all),
        pytest.param("etcd-v2", "power", marks=pytest.mark.all),
        pytest.param("etcd", "power", marks=pytest.mark.all),
    ],
)
def test_a_node_leaves_and_comes_back(
    user: Launcher,
    docker_lab: Lab,
    docker: dict[str, Daemon],
    tmp_path: Path,
    backend: str,
    lost: str,
) -> None:
    """With torchrun inside: 3 -> 2 -> 3 nodes; the container that was lost gives way to another."""
    host, hurry = docker_lab["node1"], tmp_path / "hurry"
    places = json.dumps([*mounts(), f"{tmp_path}:{tmp_path}"])
    rdzv = "{last_call_timeout: 2, keep_alive_interval: 1, keep_alive_max_attempt: 3}"
    with contextlib.ExitStack() as stack:
        rendezvous = [f"rendezvous={backend}", "cluster.master=node2"]
        if backend != "c10d":
            endpoint = stack.enter_context(etcd_on(docker_lab, "node3"))
            rendezvous.append(f"rendezvous.endpoint='{endpoint}'")
        toy = user.start(
            *("cluster=lab", *rendezvous, f"torchrun.rdzv_conf={rdzv}", "lost_s=3", "grace_s=1"),
            *("task.nnodes='2:3'", "torchrun.max_restarts=5", "cluster.ssh.connect_timeout=2"),
            *overrides(f"container.mounts={places}", python=sys.executable),
            *(f"task.script={PROGRAMS}/elastic_toy.py", "task.args.steps=150"),
            *("task.args.step_seconds=0.4", f"task.args.hurry={hurry}"),
        )
        toy.until_printed("] step 5 of", 3, seconds=120)
        if lost == "power":
            host.power_off()
        else:
            host.unplug()
        toy.until_printed("finished by 2 ranks")
        if lost == "power":
            host.power_on()
            docker["node1"].revive()
        else:
            wait_until(lambda: not docker["node1"].containers(), "its end", 60)
            host.plug()
        toy.until(lambda: ": 3 nodes, 3 ranks (node1 joined)" in toy.err, "it", 90)
        hurry.touch()
        done = toy.wait(120)
    assert done.code == 0, done
    told = re.findall(r"\] step (\d+) of \d+ finished by (\d+) ranks", done.out)
    assert {ranks for _, ranks in told} == {"2", "3"}
    assert len({step for step, _ in told}) == len({*told})


def test_ranks_that_are_root_are_ended_by_their_engine(user: Launcher) -> None:
    """Nobody else may kill them: deaf ones, and their daemons."""
    controller = begin(user, "deaf", "daemon", more=("container.user=image",))
    controller.send(signal.SIGINT)
    done = controller.wait()
    assert done.code == 130, done
    assert proven_nodes(done.err) == 2, done


def test_nobody_is_left_to_end_it(
    user: Launcher, docker_lab: Lab, docker: dict[str, Daemon]
) -> None:
    """Supervisor and guardian are killed at once: the agent removes the container, with proof."""
    controller = begin(user, "deaf", "daemon")
    pids = " ".join(str(each.pid) for each in guardian_and_supervisor(docker_lab, "node2"))
    docker_lab["node2"].sh(f"kill -9 {pids}")
    done = controller.wait()
    assert done.code == 1, done
    assert proven_nodes(done.err) == 2, done
    assert runs_on(docker, controller.run_id) == []
