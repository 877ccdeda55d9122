"""Runs inside containers of docker and podman: each ends as it would without, with proof."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.lab import engines, podman
from tests.lab.engines import DOCKER, Daemon, mounts, overrides
from tests.lab.inspecting import agent_of, guardian_and_supervisor, proven_nodes
from tests.lab.lab import Lab, LabFactory, need
from tests.lab.lab.files import LOGIN_USER
from tests.lab.lab.host import Host
from tests.lab.lab.processes import Process
from tests.lab.launching import TORCHLESS, Controller, Launcher, Result, program
from tests.lab.podman import Podman
from tests.lab.waiting import wait_until

pytestmark = [pytest.mark.containers, pytest.mark.promise(2)]

ON_DOCKER, OF_ROOT, OF_ALICE = "docker", "podman of root", "podman of alice"
ALL_ENGINES = pytest.mark.parametrize(
    "kind", [pytest.param(ON_DOCKER, marks=pytest.mark.smoke), OF_ROOT, OF_ALICE]
)
SECRET = "s3cret\nand more"
OTHER_STORE = f"/home/{LOGIN_USER}/other-store"
OTHER_SOCKET = f"/home/{LOGIN_USER}/docker.sock"


class User:
    """Somebody who launches on two hosts, in containers of an engine."""

    def __init__(
        self,
        launcher: Launcher,
        lab: Lab,
        engine_of: Mapping[str, Daemon | Podman],
        words: list[str],
        login: str,
    ) -> None:
        self.launcher, self.engine_of, self.login = launcher, engine_of, login
        self.words = words
        lab.write_cluster(launcher.conf, ssh={"user": login})

    def run(self, *words: str) -> Result:
        return self.launcher("cluster=lab", "grace_s=2", *self.words, *words)

    def run_ranks(self, words: str, *more: str) -> Result:
        return self.run(*self.launcher.rank_overrides(*words.split()), *more)

    def begin(self, *ranks: str, more: tuple[str, ...] = ()) -> Controller:
        """Start a rank on each host that does as told and sleeps; wait until both run."""
        words = self.launcher.rank_overrides(*ranks, "print=up", "sleep=600")
        controller = self.launcher.start(
            "cluster=lab", "grace_s=2", *self.words, *words, *more, env={"TOKEN": SECRET}
        )
        controller.until_printed("] up", 2)
        return controller

    def runs_on(self, run_id: str) -> list[str]:
        """The hosts that have a container of a run."""
        return [
            name
            for name, engine in self.engine_of.items()
            if any(run_id in each for each in engine.containers())
        ]

    def left(self) -> dict[str, list[str]]:
        return {name: engine.containers() for name, engine in self.engine_of.items()}


@pytest.fixture(scope="module")
def hosts(lab_factory: LabFactory) -> Iterator[Lab]:
    with lab_factory(n=2) as lab:
        yield lab
    podman.remove_left_cgroups()


@pytest.fixture(scope="module")
def docker(hosts: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Daemon]]:
    """Their daemons; ranks survive these."""
    need(engines.missing())
    yield from engines.daemons(hosts, tmp_path_factory.mktemp("docker"), survives=True)


@pytest.fixture
def on_docker(hosts: Lab, docker: dict[str, Daemon], launcher: Launcher) -> Iterator[User]:
    """Who launches on docker; nothing of theirs is left there in the end."""
    user = User(launcher, hosts, docker, overrides(), LOGIN_USER)
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
def podmans(hosts: Lab, tmp_path_factory: pytest.TempPathFactory) -> PodmanOfLogin:
    return PodmanOfLogin(hosts, tmp_path_factory.mktemp("podman"))


class PodmanOfLogin:
    """Makes a login's podman of each host ready, once.

    Attributes:
        program: Its path on all hosts.
    """

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.program = podman.write_program(folder)
        self._lab, self._folder, self._image = lab, folder, engines.make_image(folder)
        self._made: dict[str, dict[str, Podman]] = {}

    def of(self, login: str) -> dict[str, Podman]:
        hosts = self._lab.hosts.values()
        if login not in self._made:
            for host in hosts if login != "root" else ():
                podman.let_users_map(host, self._folder)
            self._made[login] = {
                host.name: Podman(host, login, self.program, self._image) for host in hosts
            }
        for engine in self._made[login].values():
            engine.revive()
        return self._made[login]


@contextlib.contextmanager
def user_of_podman(
    podmans: PodmanOfLogin, hosts: Lab, launcher: Launcher, login: str
) -> Iterator[User]:
    """Who launches by a login; nothing of theirs is left in the end."""
    words = overrides(engine="podman", program=podmans.program)
    user = User(launcher, hosts, podmans.of(login), words, login)
    yield user
    left = user.left()
    assert not any(left.values()), left
    for engine in podmans.of(login).values() if login != "root" else ():
        engine.sh("system migrate")  # ends the process that keeps the user's namespace
    wait_until(lambda: not of_runs(hosts), "no process to be left", 5)


def of_runs(lab: Lab) -> list[str]:
    found = (host.processes("RUNNER_RUN_ID") for host in lab.hosts.values())
    return [each.cmdline for processes in found for each in processes]


@pytest.fixture
def user(
    request: pytest.FixtureRequest, kind: str, hosts: Lab, launcher: Launcher
) -> Iterator[User]:
    if kind == ON_DOCKER:
        yield request.getfixturevalue("on_docker")
        return
    login = kind.rpartition(" ")[2]
    need(podman.missing(login, maps=True))
    podmans = request.getfixturevalue("podmans")
    with user_of_podman(podmans, hosts, launcher, login) as made:
        yield made


@ALL_ENGINES
@pytest.mark.promise(7)
def test_ranks_run_inside_as_the_user_of_the_login(user: User, hosts: Lab) -> None:
    """With its environment, newlines included, on no command line; deaf ones and theirs end."""
    value = "task.env.LONG='two\\nlines $ \"quoted\"'"
    names = ("LONG", "HOME", "USER", "TOKEN", "RANK", "WORLD_SIZE")
    words = [f"env={name}" for name in names]
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
        assert f"/.runner/runs/{done.folder.name}/{node}/home\nUSER={user.login}\n" in out
        logs = f"~/.runner/runs/*/{node}/attempt_0/rank_*.out"
        assert {*hosts[node].sh(f"stat -c %U {logs}", user=user.login).split()} == {user.login}


@pytest.mark.parametrize(
    ("kind", "entry", "who"),
    [
        pytest.param(ON_DOCKER, "plain", "image", marks=pytest.mark.smoke),
        (ON_DOCKER, "torchrun", "login"),
        (OF_ROOT, "plain", "login"),
        (OF_ALICE, "torchrun", "image"),
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
        pytest.param(ON_DOCKER, "client of the engine", marks=pytest.mark.smoke),
        (ON_DOCKER, "agent"),
        (ON_DOCKER, "supervisor"),
        (ON_DOCKER, "guardian"),
        (OF_ROOT, "client of the engine"),
        (OF_ROOT, "conmon"),
        (OF_ALICE, "supervisor"),
    ],
)
def test_whoever_is_killed_nothing_is_left(user: User, hosts: Lab, victim: str) -> None:
    """Of those between the user and the container: it is ended, and that is proven."""
    controller = user.begin("daemon")
    host = hosts["node2"]
    host.kill(find_victim(hosts, host, victim).pid)
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


def find_victim(lab: Lab, host: Host, victim: str) -> Process:
    if victim == "agent":
        return agent_of(lab, host.name)
    if victim in ("guardian", "supervisor"):
        guardian, supervisor = guardian_and_supervisor(lab, host.name)
        return guardian if victim == "guardian" else supervisor
    text = " run --rm --init" if victim == "client of the engine" else victim
    (found,) = (each for each in host.processes() if text in each.cmdline)
    return found


@pytest.mark.parametrize("kind", [ON_DOCKER, OF_ALICE])
def test_nobody_is_left_to_end_it(user: User, hosts: Lab, kind: str) -> None:
    """Supervisor and guardian are killed at once: the agent asks the engine of the setup."""
    if kind == ON_DOCKER:
        setting = f"DOCKER_HOST=unix://{OTHER_SOCKET}"
        for host in hosts.hosts.values():
            host.sh(f"ln -s /var/run/docker.sock {OTHER_SOCKET}")
    else:
        setting = f"XDG_DATA_HOME={OTHER_STORE}"
        podmans = (each for each in user.engine_of.values() if isinstance(each, Podman))
        user.engine_of = {each.host.name: each.with_env(setting) for each in podmans}
    controller = user.begin("daemon", more=(f'cluster.setup=["export {setting}"]',))
    assert user.runs_on(controller.run_id) == ["node1", "node2"]
    pids = " ".join(str(each.pid) for each in guardian_and_supervisor(hosts, "node2"))
    hosts["node2"].sh(f"kill -9 {pids}", user=LOGIN_USER)
    done = controller.wait()
    assert done.code == 1, done
    assert proven_nodes(done.err) == 2, done
    assert user.runs_on(controller.run_id) == []


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


def test_an_engine_that_takes_its_time(on_docker: User, tmp_path: Path) -> None:
    """Its host is not taken for one that does not stop."""
    slow = tmp_path / "docker"
    slow.write_text(f'#!/bin/sh\ncase $1 in rm|ps) sleep 7;; esac\nexec {DOCKER} "$@"\n')
    slow.chmod(0o755)
    controller = on_docker.begin("deaf", more=(f"container.program={slow}",))
    controller.send(signal.SIGINT)
    done = controller.wait()
    assert done.code == 130, done
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
    daemon = docker["node2"]
    daemon.kill()
    done = controller.wait()
    assert done.code == 5, done
    assert "docker does not say that its container is gone" in done.err, done
    assert not hosts["node2"].processes("rank.py")
    run = ("--run", controller.run_id, "--cluster", "lab")
    launcher = on_docker.launcher
    still = launcher("stop", *run)
    assert still.code == 5, still
    daemon.start()
    stopped = launcher("stop", *run)
    assert stopped.code == 0, stopped
    assert "no process is left" in stopped.out
    assert on_docker.runs_on(controller.run_id) == []
    why = launcher("why", *run)
    assert "first failure: node2: lost the client of docker: " in why.out, why
    assert proven_nodes(why.out) == 2, why


@pytest.mark.promise(8)
def test_a_user_of_podman_without_a_range(
    hosts: Lab, podmans: PodmanOfLogin, launcher: Launcher
) -> None:
    """They are told how to get one; root inside is the user outside, who owns all files."""
    need(podman.missing(LOGIN_USER, maps=False))
    with user_of_podman(podmans, hosts, launcher, LOGIN_USER) as user:
        done = user.run_ranks("env=USER", "container.user=image")
        assert done.code == 0, done
        assert done.log("node2", 1) == f"USER={LOGIN_USER}\n"
        logs = f"stat -c %U .runner/runs/{done.folder.name}/node2/attempt_0/rank_1.out"
        assert hosts["node2"].sh(logs).strip() == LOGIN_USER
        with podman.users_cannot_map(podmans.of(LOGIN_USER)["node2"]):
            refused = user.run_ranks("print=up")
        assert refused.code == 3, refused
        assert f"{podmans.program}: {LOGIN_USER} has no range of users to map" in refused.err
        ranges = "--add-subuids 100000-165535 --add-subgids 100000-165535"
        assert f"usermod {ranges} {LOGIN_USER}" in refused.err


TALKS = """
import os, sys
for n in range(20_000):
    print(os.environ["RANK"], n, "x" * 80)
    print(os.environ["RANK"], n, "y" * 80, file=sys.stderr)
"""


@pytest.mark.promise(6)
def test_no_line_is_lost_and_none_out_of_order(on_docker: User) -> None:
    """Many thousand of each rank, on both streams: on the console and on record."""
    (on_docker.launcher.folder / "talks.py").write_text(TALKS)
    done = on_docker.run("task.script=talks.py", "task.entry=plain")
    assert done.code == 0, done.err[-2000:]
    for rank, node in enumerate(("node1", "node2")):
        mark = f"[{node}:{rank}] "
        for stream, letter, console in (("out", "x", done.out), ("err", "y", done.err)):
            expected = [f"{rank} {n} {letter * 80}" for n in range(20_000)]
            assert done.log(node, rank, stream).splitlines() == expected
            shown = [line for line in console.splitlines() if line.startswith(mark)]
            assert [line.removeprefix(mark) for line in shown] == expected


def let_go(lab: Lab) -> None:
    for host in lab.hosts.values():
        host.sh('for work in ~/.runner/runs/*/*/work; do touch "$work/go"; done')


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
    let_go(hosts)
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


def test_out_of_the_containers_memory(on_docker: User) -> None:
    """The rank is named, and that it was the limit, also where its child was killed."""
    (on_docker.launcher.folder / "eats.py").write_text(EATS)
    limit = 'container.extra=["--memory=64m","--memory-swap=64m"]'
    done = on_docker.run(limit, "task.script=eats.py", "task.entry=plain")
    assert done.code == 1, done
    (line,) = re.findall("^first failure: .*", done.err, re.MULTILINE)
    assert line.startswith("first failure: rank 1 on node2 "), done
    assert "the memory limit of its container (67.1 MB) was reached" in line, done
    assert "container.extra" in done.err, done


LOCKS = "import multiprocessing\nlocks = [multiprocessing.Lock() for _ in range(10_000)]\n"


def test_out_of_the_containers_shared_memory(on_docker: User) -> None:
    """The size is the container's, and so is the cure."""
    (on_docker.launcher.folder / "locks.py").write_text(LOCKS)
    done = on_docker.run("container.shm_size=1m", "task.script=locks.py", "task.entry=plain")
    assert done.code == 1, done
    assert "the shared memory (/dev/shm: 1 MiB) is too small" in done.err, done
    assert "cure: set container.shm_size=16g" in done.err, done


STEPS = 80


def test_relaunched_after_a_failure_and_on_a_spare(
    on_docker: User, docker: dict[str, Daemon], steps: Path
) -> None:
    """A rank fails; then the daemon of its host dies: no step is left out or done twice."""
    places = json.dumps([*mounts(), f"{steps}:{steps}"])
    controller = on_docker.launcher.start(
        "cluster=lab",
        "task.nnodes=1",
        "relaunch.max=2",
        "relaunch.backoff_s=0.5",
        "grace_s=1",
        *overrides(f"container.mounts={places}"),
        *program("steps.py", str(steps), str(STEPS), "0.1/0.05", "fail=0:5:3"),
        "task.entry=plain",
    )
    controller.until_printed("attempt 1 from")
    controller.until_printed("] step 12")
    docker["node2"].kill()
    done = controller.wait()
    assert done.code == 0, done
    counted = [line.split() for line in (steps / "rank_0").read_text().splitlines()]
    assert [int(step) for step, _, _ in counted] == list(range(STEPS))
    assert {attempt for _, attempt, _ in counted} == {"0", "1", "2"}
    first, second = done.result["past_attempts"]
    assert first["reason"]["code"] == 3
    assert second["unverified"] == ["node2"], done
    docker["node2"].start()
    cleaned = on_docker.launcher("clean", "cluster=lab", "--older-than", "0s", "--yes")
    assert cleaned.code == 0, cleaned
    assert on_docker.runs_on(controller.run_id) == []


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
    """With torchrun inside, and an entry point, which has to run what it is given."""
    (tmp_path / "entry").write_text(ENTRY)
    (tmp_path / "entry").chmod(0o755)
    wrapped = f"FROM {engines.IMAGE}\nADD entry /entry\n"
    (tmp_path / "Dockerfile").write_text(wrapped)
    for daemon in docker.values():
        daemon.host.sh(f"{DOCKER} build -q -t wrapped {tmp_path}", user="root", timeout=60)
    launcher = on_docker.launcher
    hosts.write_cluster(launcher.conf, python="/usr/bin/python3")
    inside = (*overrides(python=sys.executable), "container.extra=[--entrypoint=/entry]")
    few = ("task=ddp", "task.args.epochs=1", "task.env.OMP_NUM_THREADS=1")
    done = launcher("cluster=lab", *inside, "container.image=wrapped", *few)
    assert done.code == 0, done
    assert "world size 2, backend gloo, device cpu\n" in done.log("node1", 0)
    assert proven_nodes(done.err) == 2, done
    marks = f"cat .runner/runs/{done.folder.name}/*/work/entry_point_ran"
    assert len(hosts["node1"].sh(marks).split()) == 1


def test_a_login_may_not_see_who_listens_inside(on_docker: User) -> None:
    """Root's torchrun, and nobody who has taken its port."""
    ranks = on_docker.launcher.rank_overrides("sleep=2")
    as_root = (*overrides(python=sys.executable), "container.user=image", "task.entry=torchrun")
    done = on_docker.launcher("cluster=lab", "grace_s=2", *ranks, *as_root)
    assert done.code == 0, done
    assert not any(event["kind"] == "port_taken" for event in done.events)


def test_the_words_of_another_engine(hosts: Lab, launcher: Launcher) -> None:
    """Its ranks are our children, so deaf ones are killed; what it refuses it says itself."""
    hosts.write_cluster(launcher.conf)
    prefix = "container.prefix=[/usr/bin/env,PLACE=inside]"
    user = User(launcher, hosts, {}, [prefix], LOGIN_USER)
    controller = user.begin("env=PLACE", "deaf", "daemon")
    controller.send(signal.SIGINT)
    done = controller.wait()
    assert done.code == 130, done
    assert proven_nodes(done.err) == 2, done
    assert "PLACE=inside\n" in done.log("node2", 1)
    refused = user.run("container.prefix=[/usr/bin/env,--nv]", *launcher.rank_overrides("print=up"))
    assert refused.code == 3, refused
    assert "/usr/bin/env cannot run /usr/bin/env --nv: " in refused.err, refused
