"""Runs inside containers of docker, on real daemons: each ends as it would without, with proof."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.lab.engines import DOCKER, Daemon, daemons, missing, overrides
from tests.lab.inspecting import agent_of, guardian_and_supervisor, proven_nodes
from tests.lab.lab import Lab, LabFactory
from tests.lab.lab.host import Host
from tests.lab.lab.processes import Process
from tests.lab.launching import TORCHLESS, Controller, Launcher

pytestmark = pytest.mark.containers

BOTH = "cluster=lab"
GRACE = "grace_s=2"


@pytest.fixture(scope="module")
def docker_lab(lab_factory_for_session: LabFactory) -> Iterator[Lab]:
    """Two hosts."""
    if reason := missing():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)
    with lab_factory_for_session(n=2) as lab:
        yield lab


@pytest.fixture(scope="module")
def docker(
    docker_lab: Lab, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Daemon]]:
    """Their daemons."""
    yield from daemons(docker_lab, tmp_path_factory.mktemp("docker"))


@pytest.fixture
def on_docker(docker_lab: Lab, docker: dict[str, Daemon], launcher: Launcher) -> Iterator[Launcher]:
    """A user whose conf/ names these hosts; nothing of theirs is left there in the end."""
    docker_lab.write_cluster(launcher.conf)
    yield launcher
    left = {name: daemon.containers() for name, daemon in docker.items() if daemon.answers()}
    assert not any(left.values()), left


def begin(user: Launcher, *words: str, more: tuple[str, ...] = ()) -> Controller:
    """Start a rank on each host that does as told and sleeps; wait until both run."""
    ranks = user.rank_overrides(*words, "print=up", "sleep=600")
    controller = user.start(BOTH, GRACE, *overrides(), *more, *ranks, "task.entry=plain")
    controller.until_printed("] up", 2)
    return controller


def test_ranks_run_inside_as_the_user_of_the_login(
    on_docker: Launcher, docker: dict[str, Daemon]
) -> None:
    """With torchrun's stand-in: ranks, world, home, groups and environment, newlines included."""
    value = "task.env.LONG='two\\nlines $HOME \"quoted\"'"
    secret = "cluster.secrets=[TOKEN]"
    words = ("env=LONG", "env=HOME", "env=USER", "env=TOKEN", "env=RANK", "env=WORLD_SIZE")
    path = f"task.env.PYTHONPATH={TORCHLESS}"
    ranks = on_docker.rank_overrides(*words)
    done = on_docker(
        BOTH, *overrides(path, value, secret), *ranks, env={"TOKEN": "s3cret\nand more"}
    )
    assert done.code == 0, done
    for rank, node in enumerate(("node1", "node2")):
        out = done.log(node, rank)
        assert "s3cret" in out, out
        assert f"/.runner/runs/{done.folder.name}/{node}/home" in out
        assert "alice" in out
    assert proven_nodes(done.err) == 2, done
    for daemon in docker.values():
        owners = daemon.host.sh("stat -c %U .runner/runs/*/*/attempt_0/rank_*.out").split()
        assert {*owners} == {"alice"}


def test_ctrl_c_ends_deaf_ranks_and_their_daemons(on_docker: Launcher) -> None:
    """TERM is passed on; what does not hear it is killed; the engine has nothing left."""
    controller = begin(on_docker, "deaf", "daemon")
    controller.send(signal.SIGINT)
    done = controller.wait()
    assert done.code == 130, done
    assert proven_nodes(done.err) == 2, done


@pytest.mark.parametrize("victim", ["client", "engine's client", "agent", "supervisor", "guardian"])
def test_whoever_is_killed_nothing_is_left(
    on_docker: Launcher, docker_lab: Lab, docker: dict[str, Daemon], victim: str
) -> None:
    """Of those between the user and the container: it is ended, and that is proven."""
    controller = begin(on_docker, "daemon")
    host, daemon = docker_lab["node2"], docker["node2"]
    guardian, supervisor = guardian_and_supervisor(docker_lab, "node2")
    victims = {
        "client": lambda: find(host, "container_client.py"),
        "engine's client": lambda: find(host, " start --attach"),
        "agent": lambda: agent_of(docker_lab, "node2"),
        "supervisor": lambda: supervisor,
        "guardian": lambda: guardian,
    }
    host.kill(victims[victim]().pid)
    if victim == "agent":
        controller.until(lambda: "reconnect" in controller.err, "the loss to be seen")
        controller.send(signal.SIGINT)
    done = controller.wait()
    assert done.code in (1, 130), done
    assert proven_nodes(done.err) == 2, done
    assert not daemon.containers()


def find(host: Host, text: str) -> Process:
    """The one process of a host with a text in its command line."""
    (found,) = (each for each in host.processes() if text in each.cmdline)
    return found


def test_a_daemon_that_dies_proves_nothing(on_docker: Launcher, docker: dict[str, Daemon]) -> None:
    """What ran is killed without it; that nothing is left nobody can say: exit code 5."""
    controller = begin(on_docker, "deaf")
    daemon = docker["node2"]
    daemon.kill()
    done = controller.wait()
    assert done.code == 5, done
    assert "docker" in done.err
    assert not [each for each in daemon.host.processes() if "rank.py" in each.cmdline]
    daemon.start()
    daemon.clear()


def test_exit_codes_of_the_engine_are_the_programs_too(on_docker: Launcher) -> None:
    """125, 126 and 127 of a program are its failure, as any other."""
    for code in (125, 127):
        done = on_docker.run_ranks(
            f"fail=0:{code} sleep=60", BOTH, *overrides(), "task.entry=plain"
        )
        assert done.code == 1, done
        assert f"first failure: rank 0 on node1 exited with {code}" in done.err


def test_a_container_that_does_not_start_is_no_failed_task(
    on_docker: Launcher, docker: dict[str, Daemon]
) -> None:
    """The host was not ready: exit code 3, in the engine's words."""
    script = f'case $1 in start) echo no such device >&2; exit 127;; esac; exec {DOCKER} "$@"'
    place = "/tmp/docker-that-starts-nothing"
    docker["node2"].host.sh(f"printf '#!/bin/sh\n%s\n' '{script}' >{place}; chmod 755 {place}")
    docker["node1"].host.sh(f"ln -sf {DOCKER} {place}")
    done = on_docker.run_ranks(
        "sleep=60", BOTH, *overrides(f"container.program={place}"), "task.entry=plain"
    )
    assert done.code == 3, done
    assert "first failure: node2: could not start: no such device" in done.err, done
    assert proven_nodes(done.err) == 2, done


def test_a_printed_command_runs_as_printed(on_docker: Launcher, docker_lab: Lab) -> None:
    """Nothing was launched before: a dry run makes no folder that it would need."""
    words = ("cluster.only=[node1]", "dry_run=true", "cluster.secrets=[TOKEN]", "task.entry=plain")
    ranks = on_docker.rank_overrides("env=RANK", "env=HOME", "env=TOKEN")
    done = on_docker(BOTH, *overrides(), *ranks, *words, env={"TOKEN": "of a dry run"})
    text = done.out.partition("# node1")[2].partition("\n")[2]
    assert not on_docker("deploy", "--cluster", "lab").code
    printed = docker_lab["node1"].sh(f"export TOKEN=typed\n{text}", timeout=60)
    assert "RANK=0" in printed, printed
    assert "HOME=/tmp" in printed
    assert "typed" in printed
