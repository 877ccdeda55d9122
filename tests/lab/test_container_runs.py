"""Runs in containers of docker hold what they hold without: logs, stacks, causes, verbs, memory."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator

import pytest

from tests.lab.engines import Daemon, daemons, missing, overrides
from tests.lab.inspecting import proven_nodes
from tests.lab.lab import Lab, LabFactory
from tests.lab.launching import PROGRAMS, Launcher
from tests.lab.waiting import wait_until

pytestmark = [pytest.mark.documents("docs/containers.md")]

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
    left = {name: daemon.containers() for name, daemon in docker.items()}
    for daemon in docker.values():
        daemon.clear()
    docker_lab.reset_homes()
    assert not any(left.values()), left


def test_no_line_is_lost_and_none_out_of_order(user: Launcher) -> None:
    """Many thousand of each rank, and those on the other stream: on the console and on record."""
    lines = 20_000
    done = user.run_ranks(f"lines={lines} err=last", *PLAIN, TWO, *overrides())
    assert done.code == 0, done
    for rank, node in enumerate(("node1", "node2")):
        expected = [f"{rank} {n:08d} ".ljust(99, "x") for n in range(lines)]
        assert done.log(node, rank).splitlines() == expected
        mark = f"[{node}:{rank}] "
        shown = [line for line in done.out.splitlines() if line.startswith(mark)]
        assert [line.removeprefix(mark) for line in shown] == expected
        assert done.log(node, rank, "err") == "last\n"
        assert f"{mark}last" in done.err


@pytest.mark.parametrize("whose", ["login", "image"])
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
    cleaned = user("clean", "--cluster", "lab", "--older-than", "0s")
    assert cleaned.code == 0, cleaned
    assert not docker_lab["node1"].sh("ls ~/.runner/runs")


COMPUTES = """
import time
def compute():
    end = time.time() + 7
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
    watch = ("watch.stall_s=3", "watch.action=stop")
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
    assert "memory limit" in line, done
