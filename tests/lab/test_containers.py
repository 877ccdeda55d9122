"""Runs inside containers of docker and podman: each ends as it would without, with proof."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import engines, podman
from tests.lab.engines import DOCKER, Daemon, overrides
from tests.lab.inspecting import agent_of, guardian_and_supervisor, proven_nodes
from tests.lab.lab import Lab, LabFactory, need
from tests.lab.lab.files import LOGIN_USER
from tests.lab.launching import TORCHLESS, Launcher, program
from tests.lab.podman import SECRET, Podmans, User
from tests.lab.test_launch import assert_flood

pytestmark = [pytest.mark.containers, pytest.mark.promise(2)]

OTHER_SOCKET = f"/home/{LOGIN_USER}/docker.sock"


@pytest.fixture(scope="module")
def hosts(lab_factory: LabFactory) -> Iterator[Lab]:
    with lab_factory(n=2) as lab:
        yield lab


@pytest.fixture(scope="module")
def docker(hosts: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Daemon]]:
    """Their daemons; ranks survive these."""
    need(engines.missing())
    yield from engines.daemons(hosts, tmp_path_factory.mktemp("docker"), survives=True)


@pytest.fixture
def on_docker(hosts: Lab, docker: dict[str, Daemon], launcher: Launcher) -> Iterator[User]:
    """Who launches on docker; nothing of theirs is left there in the end."""
    user = User(launcher, hosts, docker, overrides())
    yield user
    for daemon in docker.values():
        daemon.revive()
    left = user.left()
    for daemon in docker.values():
        daemon.clear()
    crashes = hosts.crashes()
    hosts.reset_homes()
    assert not any(left.values()), left
    assert not crashes


@pytest.fixture(scope="module")
def podmans(hosts: Lab, tmp_path_factory: pytest.TempPathFactory) -> Podmans:
    need(podman.missing())
    return Podmans(hosts, tmp_path_factory.mktemp("podman"))


@pytest.fixture
def user(request: pytest.FixtureRequest, kind: str, launcher: Launcher) -> Iterator[User]:
    if kind == "docker":
        yield request.getfixturevalue("on_docker")
        return
    with request.getfixturevalue("podmans").user(launcher) as made:
        yield made


@pytest.mark.parametrize("kind", [pytest.param("docker", marks=pytest.mark.smoke), "podman"])
@pytest.mark.promise(7)
def test_ranks_run_inside_as_the_user_of_the_login(user: User, hosts: Lab) -> None:
    """With its environment, newlines included, on no command line; deaf ones and theirs end."""
    value = "task.env.LONG='two\\nlines $ \"quoted\"'"
    words = [f"env={name}" for name in ["LONG", "HOME", "USER", "TOKEN", "RANK", "WORLD_SIZE"]]
    secret = (value, "cluster.secrets=[TOKEN]")
    controller = user.begin(*words, "deaf", "daemon", more=secret)
    host = hosts["node1"]
    (name,) = user.engine_of["node1"].containers()
    assert name.startswith(f"runner-{controller.run_id}-")
    shown = host.sh("cat /proc/[0-9]*/cmdline | tr '\\0' ' '", user="root")
    assert name in shown
    assert "s3cret" not in shown
    controller.send(signal.SIGINT)
    done = controller.wait()
    assert done.code == 130, done
    assert proven_nodes(done.err) == 2, done
    for rank, node in enumerate(("node1", "node2")):
        out = done.log(node, rank)
        assert f"TOKEN={SECRET}\nRANK={rank}\nWORLD_SIZE=2\n" in out
        assert 'LONG=two\\nlines $ "quoted"\n' in out
        assert f"/.runner/runs/{done.folder.name}/{node}/home\nUSER={LOGIN_USER}\n" in out
        logs = f"~/.runner/runs/*/{node}/attempt_0/rank_*.out"
        assert {*hosts[node].sh(f"stat -c %U {logs}").split()} == {LOGIN_USER}


@pytest.mark.parametrize(
    ("kind", "entry", "who"),
    [
        pytest.param("docker", "plain", "image", marks=pytest.mark.smoke),
        ("docker", "torchrun", "login"),
        ("podman", "torchrun", "image"),
    ],
)
def test_ctrl_c_gives_ranks_their_time(user: User, entry: str, who: str) -> None:
    """Who needs a moment to save has it, whatever starts the ranks, and whoever they are."""
    more = [f"cluster.env.PYTHONPATH={TORCHLESS}", f"container.user={who}", "grace_s=60"]
    user.launcher.entry = entry
    controller = user.begin("saves=1.5", more=tuple(more))
    controller.send(signal.SIGINT)
    done = controller.wait()
    assert done.code == 130, done
    for rank, node in enumerate(("node1", "node2")):
        assert done.log(node, rank) == "up\nsaving\nsaved\n", done
    assert proven_nodes(done.err) == 2, done


@pytest.mark.parametrize(
    ("kind", "victim"),
    [
        pytest.param("docker", "client of the engine", marks=pytest.mark.smoke),
        ("docker", "agent"),
        ("docker", "supervisor"),
        ("docker", "guardian"),
        ("podman", "supervisor"),
    ],
)
def test_whoever_is_killed_nothing_is_left(user: User, hosts: Lab, victim: str) -> None:
    """Of those between the user and the container: it is ended, and that is proven."""
    controller = user.begin("daemon")
    guardian, supervisor = guardian_and_supervisor(hosts, "node2")
    found = {"guardian": guardian, "supervisor": supervisor, "agent": agent_of(hosts, "node2")}
    if victim not in found:
        words = " run --rm --init"
        (found[victim],) = (p for p in hosts["node2"].processes() if words in p.cmdline)
    hosts["node2"].kill(found[victim].pid)
    if victim == "agent":
        controller.until(lambda: "reconnect" in controller.err, "the loss to be seen")
        controller.send(signal.SIGINT)
        done = controller.wait()
        assert done.code == 130, done
    else:
        done = controller.wait()
        assert done.code == 1, done
        assert "node2" in done.err.partition("first failure: ")[2].partition("\n")[0]
    assert proven_nodes(done.err) == 2, done


def test_nobody_is_left_to_end_it(on_docker: User, hosts: Lab) -> None:
    """Supervisor and guardian are killed at once: the agent asks the engine of the setup."""
    for host in hosts.hosts.values():
        host.sh(f"ln -s /var/run/docker.sock {OTHER_SOCKET}")
    setup = f'cluster.setup=["export DOCKER_HOST=unix://{OTHER_SOCKET}"]'
    controller = on_docker.begin("daemon", more=(setup,))
    assert on_docker.runs_on(controller.run_id) == ["node1", "node2"]
    pids = " ".join(str(each.pid) for each in guardian_and_supervisor(hosts, "node2"))
    hosts["node2"].sh(f"kill -9 {pids}", user=LOGIN_USER)
    done = controller.wait()
    assert done.code == 1, done
    assert proven_nodes(done.err) == 2, done
    assert on_docker.runs_on(controller.run_id) == []


def test_the_end_of_a_program_is_told_from_that_of_its_engine(
    on_docker: User, docker: dict[str, Daemon]
) -> None:
    """125 of a program is its failure; a container that does not start is a host not ready."""
    failed = on_docker.run_ranks("fail=0:125 sleep=60")
    assert failed.code == 1, failed
    assert "first failure: rank 0 on node1 exited with 125" in failed.err
    script = f'case "$*" in *--label*) echo no such device >&2; exit 127;; esac; {DOCKER} "$@"'
    place = "/tmp/docker-that-starts-nothing"
    docker["node2"].host.sh(f"printf '#!/bin/sh\n%s\n' '{script}' >{place}; chmod 755 {place}")
    docker["node1"].host.sh(f"ln -sf {DOCKER} {place}")
    done = on_docker.run_ranks("sleep=60", f"container.program={place}")
    assert done.code == 3, done
    assert "first failure: node2: could not start: no such device" in done.err, done
    assert proven_nodes(done.err) == 2, done


def test_a_daemon_that_dies_and_comes_back(
    on_docker: User, hosts: Lab, docker: dict[str, Daemon]
) -> None:
    """Ranks are ended without it, which proves nothing; `stop` removes their container later.

    Only the set-up of the run finds the engine's program.
    """
    for host in hosts.hosts.values():
        host.sh(f"mkdir bin && ln -s {DOCKER} bin/engine")
    setup = "cluster.setup=['export PATH=$HOME/bin:$PATH']"
    controller = on_docker.begin("deaf", "daemon", more=("container.program=engine", setup))
    docker["node2"].kill()
    done = controller.wait()
    assert done.code == 5, done
    assert "docker does not say that its container is gone" in done.err, done
    assert not hosts["node2"].processes("rank.py")
    run = ("--run", controller.run_id, "--cluster", "lab")
    launcher = on_docker.launcher
    still = launcher("stop", *run)
    assert still.code == 5, still
    docker["node2"].start()
    stopped = launcher.succeed("stop", *run)
    assert "no process is left" in stopped.out
    assert on_docker.runs_on(controller.run_id) == []
    why = launcher("why", *run)
    assert "first failure: node2: lost the client of docker: " in why.out, why
    assert proven_nodes(why.out) == 2, why


@pytest.mark.promise(6)
def test_no_line_is_lost_and_none_out_of_order(on_docker: User) -> None:
    """Many thousand of each rank: on the console and on record."""
    assert_flood(on_docker.run_ranks("lines=20000"), 20_000)


def test_left_asked_for_stacks_and_attached_to(on_docker: User, hosts: Lab) -> None:
    """As without a container."""
    launcher = on_docker.launcher
    words = (*on_docker.words, *program("hanging.py", "wait", "1"), "task.entry=plain")
    run = ("--run", launcher("cluster=lab", *words, "detach=true").folder.name)
    attached = launcher.start("attach", *run)
    attached.until_printed("waiting")
    attached.until_printed("loading")
    shown = launcher("stacks", *run)
    assert "rank 1 on node2, innermost first:\n    load_batch" in shown.out, shown
    for host in hosts.hosts.values():
        host.sh('for work in ~/.runner/runs/*/*/work; do touch "$work/go"; done')
    done = attached.wait()
    assert done.code == 0, done
    assert proven_nodes(done.err) == 2, done


def test_ranks_that_are_root(on_docker: User) -> None:
    """Only the engine may end deaf ones; that stacks and files are out of reach is told."""
    controller = on_docker.begin("deaf", "daemon", more=("container.user=image",))
    shown = on_docker.launcher("stacks", "--cluster", "lab")
    assert "nothing: it runs as root, and hides it from this user" in shown.out, shown
    controller.send(signal.SIGINT)
    done = controller.wait()
    assert done.code == 130, done
    assert proven_nodes(done.err) == 2, done
    cleaned = on_docker.launcher("clean", "--cluster", "lab", "--older-than", "0s", "--yes")
    assert f"with files of others or in use: {done.folder.name}" in cleaned.out, cleaned


EATS = """
import os, sys, time
if os.environ["RANK"] == "1":
    if os.fork() == 0:
        blocks = []
        while True:
            blocks.append(b"x" * (1 << 20))
    if os.wait()[1]:
        sys.exit("a worker died")
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("task", "limit", "says"),
    [
        (
            ["task.script=eats.py"],
            'container.extra=["--memory=64m","--memory-swap=64m"]',
            ["the memory limit of its container (67.1 MB) was reached", "container.extra"],
        ),
        (
            program("faulty.py", "1", "locks"),
            "container.shm_size=1m",
            ["the shared memory (/dev/shm: 1 MiB) is too small", "set container.shm_size=16g"],
        ),
    ],
    ids=["memory", "shared memory"],
)
def test_what_a_container_ran_out_of(
    on_docker: User, task: list[str], limit: str, says: list[str]
) -> None:
    """The limit is the container's, and so is the cure; also where a rank's child was killed."""
    (on_docker.launcher.folder / "eats.py").write_text(EATS)
    done = on_docker.run(limit, *task, "task.entry=plain")
    assert done.code == 1, done
    for words in ["first failure: rank 1 on node2 ", *says]:
        assert words in done.err, done


def test_a_printed_command_runs_as_printed(on_docker: User, hosts: Lab) -> None:
    """Nothing was launched before: a dry run makes no folder that it would need."""
    launcher = on_docker.launcher
    words = ("cluster.only=[node1]", "dry_run=true", "cluster.secrets=[TOKEN]")
    ranks = launcher.rank_overrides("env=RANK", "env=HOME", "env=TOKEN")
    done = launcher("cluster=lab", *overrides(), *ranks, *words, env={"TOKEN": "of a dry run"})
    text = done.out.partition("# node1")[2].partition("\n")[2]
    assert not launcher("deploy", "--cluster", "lab").code
    printed = hosts["node1"].sh(f"export TOKEN=typed\n{text}", timeout=60)
    assert "RANK=0\nHOME=/tmp" in printed
    assert "typed" in printed


ENTRY = """\
#!/bin/sh
echo "== a banner =="
[ "$RUNNER_RUN_ID" ] && echo "$1" >>entry_point_ran
exec "$@"
"""


def test_a_training_where_no_host_has_torch(
    on_docker: User, hosts: Lab, docker: dict[str, Daemon], tmp_path: Path
) -> None:
    """With torchrun inside, and an entry point, which has to run what it is given.

    Root's torchrun: the login may not see who listens inside, and nobody has taken its port.
    """
    (tmp_path / "entry").write_text(ENTRY)
    (tmp_path / "entry").chmod(0o755)
    wrapped = f"FROM {engines.IMAGE}\nADD entry /entry\n"
    (tmp_path / "Dockerfile").write_text(wrapped)
    for daemon in docker.values():
        daemon.host.sh(f"{DOCKER} build -q -t wrapped {tmp_path}", user="root", timeout=60)
    launcher = on_docker.launcher
    hosts.write_cluster(launcher.conf, python="/usr/bin/python3")
    as_root = ("container.user=image", "container.extra=[--entrypoint=/entry]")
    inside = (*overrides(python=sys.executable), *as_root)
    few = ("task=ddp", "task.args.epochs=1", "task.env.OMP_NUM_THREADS=1")
    done = launcher.succeed("cluster=lab", *inside, "container.image=wrapped", *few)
    assert "world size 2, backend gloo, device cpu\n" in done.log("node1", 0)
    assert proven_nodes(done.err) == 2, done
    marks = f"cat .runner/runs/{done.folder.name}/*/work/entry_point_ran"
    assert len(hosts["node1"].sh(marks).split()) == 1
    assert not any(event["kind"] == "port_taken" for event in done.events)
