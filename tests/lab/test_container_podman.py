"""Runs inside containers of podman, which has no daemon: they end as docker's do, with proof."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from tests.lab.engines import make_image, overrides
from tests.lab.inspecting import guardian_and_supervisor, proven_nodes
from tests.lab.lab import Lab, LabFactory
from tests.lab.lab.files import LOGIN_USER
from tests.lab.lab.processes import Process
from tests.lab.launching import Controller, Launcher
from tests.lab.podman import (
    FOLDER,
    Podman,
    let_users_map,
    missing,
    remove_left_cgroups,
    users_cannot_map,
    write_program,
)

pytestmark = pytest.mark.containers

SECRET = "s3cret\nand more"
LOGINS = pytest.mark.parametrize("login", ["root", LOGIN_USER])


class PodmanUser:
    """Somebody who launches on two hosts, by a login with a podman on each of them."""

    def __init__(
        self, launcher: Launcher, lab: Lab, program: str, engines: dict[str, Podman]
    ) -> None:
        self.launcher, self.engines = launcher, engines
        self.login, self.program = engines["node1"].login, program
        self._words = overrides(engine="podman", program=program)
        lab.write_cluster(launcher.conf, ssh={"user": self.login})

    def start(self, *ranks: str, more: tuple[str, ...] = ()) -> Controller:
        """Start a rank on each host that does as told."""
        words = [*self._words, *more, *self.launcher.rank_overrides(*ranks), "task.entry=plain"]
        return self.launcher.start("cluster=lab", "grace_s=2", *words, env={"TOKEN": SECRET})

    def begin(self, *ranks: str, more: tuple[str, ...] = ()) -> Controller:
        """Start one that sleeps in the end; wait until both do."""
        controller = self.start(*ranks, "print=up", "sleep=600", more=more)
        controller.until_printed("] up", 2)
        return controller


class UserOf(Protocol):
    """Makes the user of a login, who has a range of users or not."""

    def __call__(self, login: str, *, maps: bool = True) -> PodmanUser:
        """Return who launches."""


def skip_if(reason: str) -> None:
    """Skip for a reason; in CI a skip would look like a pass."""
    if reason:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)


@pytest.fixture(scope="module")
def podman_lab(lab_factory_for_session: LabFactory) -> Iterator[Lab]:
    """Two hosts."""
    skip_if(missing("root", maps=False))
    with lab_factory_for_session(n=2) as lab:
        yield lab
    remove_left_cgroups()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the program, on all hosts."""
    return tmp_path_factory.mktemp("podman")


@pytest.fixture(scope="module")
def engines_of(podman_lab: Lab, folder: Path) -> Callable[[str], dict[str, Podman]]:
    """Makes a login's podman of each host ready, once."""
    image, made = make_image(folder), dict[str, dict[str, Podman]]()
    program = write_program(folder)

    def prepare(login: str) -> dict[str, Podman]:
        hosts = podman_lab.hosts.values()
        for host in hosts if login != "root" else ():
            let_users_map(host, folder)
        return {host.name: Podman(host, login, program, image) for host in hosts}

    def engines(login: str) -> dict[str, Podman]:
        made[login] = made.get(login) or prepare(login)
        return made[login]

    return engines


@pytest.fixture
def user_of(
    podman_lab: Lab,
    folder: Path,
    engines_of: Callable[[str], dict[str, Podman]],
    launcher: Launcher,
) -> Iterator[UserOf]:
    """Makes the user of a login; nothing of theirs is left on the hosts in the end."""
    used: list[PodmanUser] = []

    def user(login: str, *, maps: bool = True) -> PodmanUser:
        skip_if(missing(login, maps=maps))
        engines = engines_of(login)
        used.append(PodmanUser(launcher, podman_lab, str(folder / "podman"), engines))
        return used[-1]

    yield user
    for each in used:
        left = {name: engine.containers() for name, engine in each.engines.items()}
        assert not any(left.values()), left
        for engine in each.engines.values() if each.login != "root" else ():
            engine.sh("system migrate")  # ends the process that keeps the user's namespace
    assert not podman_lab.wait_idle(5)


@LOGINS
def test_ranks_run_inside_as_the_user_of_the_login(
    user_of: UserOf, podman_lab: Lab, login: str
) -> None:
    """Home, user and environment, newlines included; podman's files have no secret."""
    value = "task.env.LONG='two\\nlines $HOME \"quoted\"'"
    words = [f"env={name}" for name in ("LONG", "HOME", "USER", "TOKEN", "container")]
    user = user_of(login)
    controller = user.begin(*words, more=(value, "cluster.secrets=[TOKEN]"))
    host = podman_lab["node1"]
    kept = f"{FOLDER} ~/.local/share/containers /tmp/podman-run-*"
    assert not host.sh(f"grep -rls s3cret {kept}", user=login, check=False)
    (name,) = user.engines["node1"].containers()
    assert name.startswith(f"runner-{controller.run_id}-")
    controller.send(signal.SIGINT)
    done = controller.wait()
    assert done.code == 130, done
    assert proven_nodes(done.err) == 2, done
    for rank, node in enumerate(("node1", "node2")):
        out = done.log(node, rank)
        assert f"TOKEN={SECRET}\ncontainer=podman\n" in out
        assert 'LONG=two\\nlines $HOME "quoted"\n' in out
        assert f"/.runner/runs/{done.folder.name}/{node}/home\nUSER={login}\n" in out
        logs = f"~/.runner/runs/*/{node}/attempt_0/rank_*.out"
        assert {*podman_lab[node].sh(f"stat -c %U {logs}", user=login).split()} == {login}


@LOGINS
def test_ctrl_c_ends_deaf_ranks_and_their_daemons(user_of: UserOf, login: str) -> None:
    """TERM is passed on; what does not hear it is killed; podman has nothing left."""
    controller = user_of(login).begin("deaf", "daemon")
    controller.send(signal.SIGINT)
    done = controller.wait()
    assert done.code == 130, done
    assert proven_nodes(done.err) == 2, done


@pytest.mark.parametrize(
    ("victim", "login"),
    [
        ("podman", "root"),
        pytest.param("supervisor", LOGIN_USER, marks=pytest.mark.all),
        pytest.param("client", "root", marks=pytest.mark.all),
        pytest.param("conmon", "root", marks=pytest.mark.all),
        pytest.param("supervisor", "root", marks=pytest.mark.all),
    ],
)
def test_whoever_is_killed_nothing_is_left(
    user_of: UserOf, podman_lab: Lab, victim: str, login: str
) -> None:
    """Of those between the user and the container, its monitor included."""
    controller = user_of(login).begin("daemon")
    host = podman_lab["node2"]
    texts = {"client": "container_client.py", "podman": " start --attach", "conmon": "conmon"}

    def find() -> Process:
        if victim == "supervisor":
            return guardian_and_supervisor(podman_lab, "node2")[1]
        (found,) = (each for each in host.processes() if texts[victim] in each.cmdline)
        return found

    host.kill(find().pid)
    done = controller.wait()
    assert done.code == 1, done
    assert "first failure: " in done.err
    assert "node2" in done.err.partition("first failure: ")[2].partition("\n")[0]
    ends = [each for each in done.events if each["kind"] == "program_exited"]
    assert all(each["code"] != 0 for each in ends), ends  # null: by a signal
    assert proven_nodes(done.err) == 2, done


def test_store_of_the_setup_is_asked_by_whoever_removes(user_of: UserOf, podman_lab: Lab) -> None:
    """The agent, when nobody else is left: it has not done the setup."""
    user = user_of(LOGIN_USER)
    store = f"/home/{LOGIN_USER}/other-store"
    setup = f'cluster.setup=["export XDG_DATA_HOME={store}"]'
    others = [engine.with_env(f"XDG_DATA_HOME={store}") for engine in user.engines.values()]
    controller = user.begin("daemon", more=(setup,))
    pids = " ".join(str(each.pid) for each in guardian_and_supervisor(podman_lab, "node2"))
    podman_lab["node2"].sh(f"kill -9 {pids}", user=LOGIN_USER)
    done = controller.wait()
    assert done.code == 1, done
    assert proven_nodes(done.err) == 2, done
    assert [other.containers() for other in others] == [[], []]


@pytest.mark.all
def test_exit_codes_of_the_engine_are_the_programs_too(user_of: UserOf) -> None:
    """125 of a program is its failure, as any other."""
    done = user_of("root").start("fail=0:125", "sleep=60").wait()
    assert done.code == 1, done
    assert "first failure: rank 0 on node1 exited with 125" in done.err


def test_without_a_range_root_inside_is_the_user_outside(user_of: UserOf, podman_lab: Lab) -> None:
    """With `container.user=image`, also where nobody can map: files are the user's."""
    user = user_of(LOGIN_USER, maps=False)
    done = user.start("env=USER", more=("container.user=image",)).wait()
    assert done.code == 0, done
    assert proven_nodes(done.err) == 2, done
    assert done.log("node2", 1) == f"USER={LOGIN_USER}\n"
    logs = f"stat -c %U .runner/runs/{done.folder.name}/node2/attempt_0/rank_1.out"
    assert podman_lab["node2"].sh(logs).strip() == LOGIN_USER


def test_a_user_without_subuids_is_told_so(user_of: UserOf) -> None:
    """Before anything starts, with the command to cure it."""
    user = user_of(LOGIN_USER, maps=False)
    with users_cannot_map(user.engines["node2"]):
        done = user.start("print=up").wait()
    assert done.code == 3, done
    assert f"{user.program}: {LOGIN_USER} has no range of users to map" in done.err
    assert (
        f"usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {LOGIN_USER}" in done.err
    )
