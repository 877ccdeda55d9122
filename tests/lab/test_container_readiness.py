"""What keeps a run from its containers: one message with place and cure, and nothing started."""

from __future__ import annotations

import contextlib
import json
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.lab.engines import DOCKER, Daemon, make_image, missing, mounts, overrides
from tests.lab.inspecting import proven_nodes
from tests.lab.lab import Lab, LabFactory, need
from tests.lab.launching import Launcher
from tests.lab.waiting import wait_until

pytestmark = [pytest.mark.containers, pytest.mark.promise(8)]

REGISTRY = "127.0.0.1:5000"
MUTE = "import socket, time; s = socket.create_server(('127.0.0.1', 5000)); time.sleep(9000)"
OWN_PROGRAM = "/home/alice/docker"  # a link, which a host may have or not
ALONE = "cluster.only=[node1]"


@dataclass(frozen=True)
class Engines:
    """Four hosts: two with a daemon, one without, and one whose daemon is for root alone."""

    lab: Lab
    daemons: dict[str, Daemon]


@pytest.fixture(scope="module")
def engines(lab_factory: LabFactory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    """node2 has no `OWN_PROGRAM`; node1 has a registry that takes questions and never answers."""
    need(missing())
    image = make_image(tmp_path_factory.mktemp("docker"))
    with lab_factory(n=4) as lab:
        daemons = {name: Daemon(lab[name], image, survives=False) for name in ("node1", "node2")}
        closed = Daemon(lab["node4"], image, survives=False, group="root")
        for name in ("node1", "node3", "node4"):
            lab[name].sh(f"ln -s {DOCKER} {OWN_PROGRAM}")
        with contextlib.ExitStack() as stack:
            for daemon in daemons.values():
                stack.callback(daemon.close)
                daemon.revive()
            registry = stack.enter_context(lab["node1"].popen(["/usr/bin/python3", "-c", MUTE]))
            stack.callback(registry.kill)
            stack.callback(closed.close)
            closed.start()
            yield Engines(lab, daemons)


@pytest.fixture
def user(engines: Engines, launcher: Launcher) -> Iterator[Launcher]:
    """A user whose conf/ names these hosts, on which nothing is left."""
    engines.lab.write_cluster(launcher.conf)
    yield launcher
    left = {name: daemon.containers() for name, daemon in engines.daemons.items()}
    assert not any(left.values()), left


def refused(user: Launcher, *words: str) -> str:
    """Return what a launch says that has to be refused."""
    task = [] if "task=env" in words else user.rank_overrides("print=up")
    done = user("cluster=lab", *words, *task)
    assert done.code == 3, done
    assert "Traceback" not in done.err
    assert "up" not in done.out
    assert not list(user.folder.glob("runs/*/result.json"))
    return re.sub(r"^error: ", "", done.err, flags=re.MULTILINE)


def said_of(err: str, node: str) -> str:
    lines = err.splitlines()
    found = [at for at, line in enumerate(lines) if line.startswith(f"{node}: ")]
    assert len(found) == 1, err
    (start,) = found
    return "\n".join(lines[start : start + 2])


def test_each_host_says_what_its_engine_lacks(user: Launcher, engines: Engines) -> None:
    """All at once: an answer, which is not waited for for ever; a program; a daemon; permission."""
    words = overrides(f"container.program={OWN_PROGRAM}")
    daemon = engines.daemons["node1"]
    daemon.pause()
    try:
        err = refused(user, *words)
        checked = user("check", "cluster=lab", *words)
    finally:
        daemon.resume()
    assert checked.code == 3, checked
    assert "does not work: no answer within" in " ".join(checked.out.split()), checked
    assert "does not work: no answer within" in said_of(err, "node1")
    assert f"container.program: there is no {OWN_PROGRAM}" in said_of(err, "node2")
    assert "set container.program to its path" in said_of(err, "node2")
    assert "does not work: Cannot connect" in said_of(err, "node3")
    assert "look at its daemon there" in said_of(err, "node3")
    assert "alice may not use the socket of its daemon" in said_of(err, "node4")
    assert "usermod -aG docker alice" in said_of(err, "node4")


IMAGES = {
    "never": (
        ("container.image=nosuch", "container.pull=never"),
        "container.image: nosuch is not on this host",
    ),
    "registry refuses": (("container.image=127.0.0.1:1/x",), "connection refused"),
    "registry hangs": (
        (f"container.image={REGISTRY}/slow", "container.prepare_timeout_s=2"),
        f"container.image: {REGISTRY}/slow cannot be pulled: no answer within 2 s",
    ),
    "no torch": (("task=env",), "no torch in /usr/bin/python3"),
    "no mount": (
        (f"container.mounts={json.dumps([*mounts(), '/no/data:/data'])}",),
        "bind source path does not exist: /no/data",
    ),
}


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_that_cannot_be_used(user: Launcher, name: str) -> None:
    """Its name, what was found, and the key to set."""
    words, says = IMAGES[name]
    err = refused(user, ALONE, *overrides(*words))
    assert says in said_of(err, "node1"), err
    assert "container." in said_of(err, "node1")


def test_ctrl_c_ends_a_pull_and_a_probe(user: Launcher, engines: Engines, tmp_path: Path) -> None:
    """Of a registry that says nothing; of an interpreter that answers nothing."""
    host = engines.lab["node1"]
    daemon = engines.daemons["node1"]
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nsleep 600\n")
    python.chmod(0o755)
    places = f"container.mounts={json.dumps([*mounts(), f'{python}:/opt/python'])}"

    def pulls() -> bool:
        return any(" pull --quiet" in each.cmdline for each in host.processes())

    def probes() -> bool:
        return bool(daemon.containers(everyone=False))

    for words, works in (
        ([f"container.image={REGISTRY}/slow"], pulls),
        ([places, "container.python=/opt/python"], probes),
    ):
        ranks = user.rank_overrides("print=up")
        controller = user.start("cluster=lab", ALONE, *overrides(*words), *ranks)
        wait_until(works, "the engine to be asked")
        controller.send(signal.SIGINT)
        done = controller.wait()
        assert done.code == 130, done
        assert "nothing was started" in done.err
        wait_until(lambda: not (pulls() or daemon.containers()), "its end")
        wait_until(lambda: not any(".runner" in p.cmdline for p in host.processes()), "our end")


@pytest.mark.promise(2)
def test_an_engine_that_takes_its_time(user: Launcher, tmp_path: Path) -> None:
    """Its host is not taken for one that does not stop."""
    slow = tmp_path / "docker"
    slow.write_text(f'#!/bin/sh\ncase $1 in rm|ps) sleep 7;; esac\nexec {DOCKER} "$@"\n')
    slow.chmod(0o755)
    words = (ALONE, "grace_s=2", *overrides(f"container.program={slow}"))
    ranks = user.rank_overrides("deaf", "print=up", "sleep=600")
    controller = user.start("cluster=lab", *words, *ranks)
    controller.until_printed("] up")
    controller.send()
    done = controller.wait()
    assert done.code == 130, done
    assert proven_nodes(done.err) == 1, done
