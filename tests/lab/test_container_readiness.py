"""What keeps a run from its containers: one message with place and cure, and nothing started."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.lab.engines import DOCKER, FOLDER, Daemon, make_image, missing, mounts, overrides
from tests.lab.lab import Lab, LabFactory
from tests.lab.launching import PROGRAMS, TORCHLESS, Launcher, Result
from tests.lab.waiting import wait_until

pytestmark = [pytest.mark.containers, pytest.mark.promise(8)]

PORT = 5000
REGISTRY = f"127.0.0.1:{PORT}"
OWN_PROGRAM = "/home/alice/docker"  # a link, which a host may have or not
OWN_SOCKET = "/home/alice/docker.sock"
ALONE = "cluster.only=[node1]"
OLD_PYTHON = f"{Path.home()}/.pyenv/versions/3.7.16"
SMALL_DISK = "mount -t tmpfs -o size=300m images"


@dataclass(frozen=True)
class Engines:
    """Four hosts: two with a daemon, one without, and one whose daemon is for root alone."""

    lab: Lab
    daemons: dict[str, Daemon]

    def containers(self) -> dict[str, list[str]]:
        """All containers, by host."""
        return {name: daemon.containers() for name, daemon in self.daemons.items()}


@pytest.fixture(scope="module")
def engines(
    lab_factory_for_session: LabFactory, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engines]:
    """node2 has a small disk for images, and no `OWN_PROGRAM`."""
    if reason := missing():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)
    image = make_image(tmp_path_factory.mktemp("docker"))
    with lab_factory_for_session(n=4) as lab:
        daemons = {name: Daemon(lab[name], image, survives=False) for name in ("node1", "node2")}
        closed = Daemon(lab["node4"], image, survives=False, group="root")
        folder = f"{FOLDER}/root"
        lab["node2"].sh(f"mkdir -p {folder} && {SMALL_DISK} {folder}", user="root")
        for name in ("node1", "node3", "node4"):
            lab[name].sh(f"ln -s {DOCKER} {OWN_PROGRAM}")
        with contextlib.ExitStack() as stack:
            for number, daemon in enumerate(daemons.values()):
                stack.callback(daemon.close)
                daemon.revive()
                argv = ["/usr/bin/python3", str(PROGRAMS / "registry.py"), str(PORT), f"2.{number}"]
                registry = stack.enter_context(daemon.host.popen(argv))
                stack.callback(registry.kill)
            stack.callback(closed.close)
            closed.start()
            yield Engines(lab, daemons)


@pytest.fixture
def user(engines: Engines, launcher: Launcher) -> Iterator[Launcher]:
    """A user whose conf/ names these hosts, on which nothing is left."""
    engines.lab.write_cluster(launcher.conf)
    yield launcher
    assert not any(engines.containers().values()), engines.containers()


def refused(user: Launcher, *words: str, check: bool = True, seconds: float = 40) -> str:
    """Return what a launch says that has to be refused; `check` has to say the same."""
    ranks = [] if any(word.startswith("task=") for word in words) else ["task.entry=plain"]
    task = user.rank_overrides("print=up") if ranks else []
    checking = user.start("check", "cluster=lab", *words, *task, *ranks) if check else None
    done = user("cluster=lab", *words, *task, *ranks, seconds=seconds)
    assert done.code == 3, done
    assert "Traceback" not in done.err
    assert "up" not in done.out
    assert not list(user.folder.glob("runs/*/result.json"))
    if checking:
        checked = checking.wait(seconds)
        assert checked.code == 3, checked
        messages = re.findall(r"^(?:error: )?node[0-9]+: (.*)$", done.err, re.MULTILINE)
        assert messages, done
        for message in messages:
            assert "".join(message.split()) in "".join(checked.out.split()), (message, checked)
    return re.sub(r"^error: ", "", done.err, flags=re.MULTILINE)


def said_of(err: str, node: str) -> str:
    """Return the problem of a node, with its hint."""
    lines = err.splitlines()
    found = [at for at, line in enumerate(lines) if line.startswith(f"{node}: ")]
    assert len(found) == 1, err
    (start,) = found
    return "\n".join(lines[start : start + 2])


def test_each_host_says_what_its_engine_lacks(user: Launcher, engines: Engines) -> None:
    """All at once: an answer, which is not waited for for ever; a program; a daemon; permission."""
    daemon = engines.daemons["node1"]
    daemon.pause()
    try:
        began = time.monotonic()
        err = refused(user, *overrides(f"container.program={OWN_PROGRAM}"))
        assert time.monotonic() - began < 30
    finally:
        daemon.resume()
    assert "its daemon did not answer in time: it hangs" in said_of(err, "node1")
    assert "systemctl status docker" in said_of(err, "node1")
    assert f"container.program: there is no {OWN_PROGRAM}" in said_of(err, "node2")
    assert "set container.program to its path" in said_of(err, "node2")
    assert "its daemon (unix:///var/run/docker.sock) does not run" in said_of(err, "node3")
    assert "systemctl start docker" in said_of(err, "node3")
    assert "alice may not use the socket of its daemon" in said_of(err, "node4")
    assert "usermod -aG docker alice" in said_of(err, "node4")


def test_a_program_that_is_on_no_path(user: Launcher) -> None:
    """By its name."""
    err = refused(user, ALONE, *overrides("container.program=no-docker"))
    assert "node1: container.program: there is no no-docker on its PATH" in err


@pytest.mark.parametrize("address", ["tcp://10.9.8.7:2375", "ssh://alice@far"])
def test_an_engine_on_another_machine(user: Launcher, address: str) -> None:
    """What would be mounted is that machine's."""
    err = refused(user, ALONE, f'cluster.setup=["export DOCKER_HOST={address}"]', *overrides())
    said = said_of(err, "node1")
    assert f"is set to use {address}, another machine, whose folders would be mounted" in said
    assert "DOCKER_HOST" in said


def test_a_context_of_another_machine(user: Launcher, engines: Engines) -> None:
    """It is in a file of the user's, not in the environment."""
    host = engines.lab["node1"]
    host.sh(f"{DOCKER} context create far --docker host=tcp://10.9.8.7:2375")
    host.sh(f"{DOCKER} context use far")
    try:
        err = refused(user, ALONE, *overrides())
        assert "tcp://10.9.8.7:2375, another machine" in said_of(err, "node1")
    finally:
        host.sh(f"{DOCKER} context use default")


IMAGES = {
    "never": (
        ("container.image=nosuch", "container.pull=never"),
        "container.image: nosuch is not on this host, and container.pull is never",
    ),
    "registry refuses": (("container.image=127.0.0.1:1/x",), "connection refused"),
    "registry hangs": (
        (f"container.image={REGISTRY}/slow", "container.prepare_timeout_s=2"),
        f"container.image: {REGISTRY}/slow is not on this host, and could not be pulled in time",
    ),
    "no such registry": (("container.image=no-such-registry.invalid/x",), "cannot be pulled: Get"),
    "not in the registry": ((f"container.image={REGISTRY}/gone",), "cannot be pulled: manifest"),
    "no legal name": (("container.image=BAD/Name",), "must be lowercase"),
    "another processor": (
        (f"container.image={REGISTRY}/arm",),
        f"container.image: {REGISTRY}/arm is for arm64, and this host is a x86_64",
    ),
    "no python": (("container.mounts=[]",), "container.python: bare has no /usr/bin/python3"),
    "no torch": (("task=env",), "no torch in /usr/bin/python3"),
    "old python": (
        (
            f"container.mounts={json.dumps([*mounts(), f'{OLD_PYTHON}:{OLD_PYTHON}:ro'])}",
            f"container.python={OLD_PYTHON}/bin/python",
        ),
        f"container.image: bare: {OLD_PYTHON}/bin/python is Python 3.7.16, older than 3.8",
    ),
    "no mount": (
        (f"container.mounts={json.dumps([*mounts(), '/no/data:/data'])}",),
        "container.mounts: there is no /no/data",
    ),
    "no such option": (('container.extra=["--no-such=1"]',), "unknown flag: --no-such"),
    "a limit too high": (
        ('container.extra=["--ulimit=nofile=9000000000000:9000000000000"]',),
        "docker refuses a container of bare: ",
    ),
}


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_that_cannot_be_used(user: Launcher, name: str) -> None:
    """Its name, what was found, and the key to set."""
    words, says = IMAGES[name]
    err = refused(user, ALONE, *overrides(*words), check=name in ("never", "no python", "no torch"))
    assert says in said_of(err, "node1"), err
    assert "container." in said_of(err, "node1")


def test_images_with_different_torch_are_refused(user: Launcher) -> None:
    """As are hosts, and with the advice that helps."""
    words = (f"container.image={REGISTRY}/with_torch", "task.env.PYTHONPATH=/opt/lib", "task=env")
    both = "cluster.only=[node1,node2]"
    refused(user, both, *overrides(*words), check=False)  # pulls it, which a check does not
    err = refused(user, both, *overrides(*words))
    assert "torch 2.1, most have 2.0: they cannot work together" in said_of(err, "node2")
    assert "use an image with the same version on every node" in said_of(err, "node2")


def test_a_check_says_what_is_used_and_what_is_small(user: Launcher) -> None:
    """The probe's container has what that of a run would have, and its user."""
    torchless = f"task.env.PYTHONPATH={TORCHLESS}"
    words = (ALONE, "task=env", "cluster.nproc_per_node=2", *overrides(torchless))
    done = user("check", "cluster=lab", *words)
    assert done.code == 0, done
    printed = " ".join(done.out.split())
    assert f"({DOCKER}, unix:///var/run/docker.sock), bare for linux/amd64" in printed, done
    assert "has 64 MiB for 2 ranks" in printed
    assert "container.shm_size=16g" in printed
    done = user("check", "cluster=lab", *words, "container.shm_size=128m")
    assert done.code == 0, done
    assert "MiB for 2 ranks" not in done.out


def test_a_disk_that_has_no_room_for_an_image(user: Launcher, engines: Engines) -> None:
    """It fills while layers are unpacked, or is so full that nothing is tried."""
    host, only = engines.lab["node2"], "cluster.only=[node2]"
    err = refused(user, only, *overrides(f"container.image={REGISTRY}/vast"), check=False)
    room = f"and there is no room for it: {FOLDER}/root has "
    assert room in said_of(err, "node2"), err
    assert "docker system df" in said_of(err, "node2")
    filler = f"{FOLDER}/root/filler"
    host.sh(f"head -c 100m /dev/zero >{filler}", user="root")
    try:
        err = refused(user, only, *overrides(f"container.image={REGISTRY}/other"), check=False)
        assert room in said_of(err, "node2"), err
    finally:
        host.sh(f"rm {filler}", user="root")
    images = host.sh(f"{DOCKER} images --format {{{{.Repository}}}}").split()
    assert f"{REGISTRY}/vast" not in images


def test_ctrl_c_ends_a_pull(user: Launcher, engines: Engines) -> None:
    """Of a registry that takes the question and says no more."""
    host = engines.lab["node1"]
    words = overrides(f"container.image={REGISTRY}/slow")
    controller = user.start("cluster=lab", ALONE, *words, *user.rank_overrides("print=up"))
    wait_until(lambda: pulls(engines), "the pull to begin")
    controller.send(signal.SIGINT)
    done = controller.wait(20)
    assert done.code == 130, done
    assert "nothing was started" in done.err
    wait_until(lambda: not pulls(engines), "the pull to end", 5)
    assert not [each for each in host.processes() if ".runner" in each.cmdline]


def test_ctrl_c_leaves_no_container_of_a_probe(
    user: Launcher, engines: Engines, tmp_path: Path
) -> None:
    """Its client is killed, and its interpreter answers nothing."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nsleep 600\n")
    python.chmod(0o755)
    places = f"container.mounts={json.dumps([*mounts(), f'{python}:/opt/python'])}"
    words = overrides(places, "container.python=/opt/python")
    controller = user.start("cluster=lab", ALONE, *words, *user.rank_overrides("print=up"))
    daemon = engines.daemons["node1"]
    wait_until(lambda: daemon.containers(everyone=False), "the probe to run")
    controller.send(signal.SIGINT)
    assert controller.wait(20).code == 130
    wait_until(lambda: not daemon.containers(), "its container to be removed", 10)


def pulls(engines: Engines) -> list[str]:
    """The clients that pull on node1."""
    processes = engines.lab["node1"].processes()
    return [each.cmdline for each in processes if " pull --quiet" in each.cmdline]


def test_clean_removes_images_that_launches_pulled(user: Launcher, engines: Engines) -> None:
    """On request, when no run has them; those that were there stay."""
    image = f"{REGISTRY}/small"
    words = (ALONE, *overrides(f"container.image={image}"), "task.entry=plain")
    done = user.run_ranks("print=hi", "cluster=lab", *words)
    assert done.code == 0, done
    running = user.start("cluster=lab", *words, *user.rank_overrides("print=up", "sleep=600"))
    running.until_printed("] up")
    assert f"in use: {running.run_id}, {image}" in clean(user, "--images").out
    running.send(signal.SIGINT)
    assert running.wait().code == 130
    assert "image" not in clean(user, "--dry-run").out
    assert f"  image {image}\n" in clean(user, "--images", "--dry-run").out
    assert image in images(engines)
    assert "and 1 image removed" in clean(user, "--images").out
    assert image not in images(engines)
    assert "bare" in images(engines)


def images(engines: Engines) -> list[str]:
    """The images on node1."""
    return engines.lab["node1"].sh(f"{DOCKER} images --format {{{{.Repository}}}}").split()


def clean(user: Launcher, *words: str) -> Result:
    """Run the verb on node1, which has to succeed."""
    done = user("clean", "cluster=lab", ALONE, "--older-than", "0s", "--yes", *words)
    assert done.code == 0, done
    return done


def test_clean_removes_a_container_that_a_run_left(user: Launcher, engines: Engines) -> None:
    """Its daemon had died, and could not be asked; only the setup lines say where it listens."""
    daemon = engines.daemons["node1"]
    daemon.host.sh(f"ln -s /var/run/docker.sock {OWN_SOCKET}")
    setup = f'cluster.setup=["export DOCKER_HOST=unix://{OWN_SOCKET}"]'
    words = (ALONE, setup, "grace_s=1", *overrides(), "task.entry=plain")
    running = user.start("cluster=lab", *words, *user.rank_overrides("print=up", "sleep=600"))
    running.until_printed("] up")
    daemon.kill()
    assert running.wait().code == 5
    order = daemon.host.read(f".runner/runs/{running.run_id}/node1/order.json")
    assert json.loads(order)["container"]["env"]["DOCKER_HOST"] == f"unix://{OWN_SOCKET}"
    daemon.start()
    assert daemon.containers()
    assert "1 run and " in clean(user).out
    assert not daemon.containers()


WRONG = {
    "container=dokcer": ("docker",),
    "container.image=null": ("container.image", "docker needs an image"),
    "container.image=": ("container.image", "must be a text of one line"),
    "container.pull=sometimes": ("container.pull", "choose missing, always or never"),
    "container.user=root": ("container.user", "choose login or image"),
    "container.ipc=shareable": ("container.ipc", "choose private or host"),
    "container.shm_size=lots": ("container.shm_size", "such as 16g"),
    "container.ulimits={nofiles: 9}": ("container.ulimits.nofiles", "did you mean nofile?"),
    "container.ulimits={nofile: '9:1'}": ("container.ulimits.nofile", "SOFT:HARD"),
    "container.mounts=[data:/data]": ("container.mounts", "absolute paths"),
    "container.mounts=[/data]": ("container.mounts", "SOURCE:TARGET"),
    "container.mounts=['/a:/b:rx']": ("container.mounts", "such as /data:/data:ro"),
    "container.mounts=['/a:/b','/c:/b/']": ("container.mounts", "two sources have that place"),
    "container.mounts=['/a:/']": ("container.mounts", "hide the image"),
    "container.extra=['--rm']": ("container.extra", "--rm is not possible"),
    "container.extra=['-v','data:/data']": ("--volume is not possible", "container.mounts"),
    "container.extra=['--network=bridge']": ("--network is not possible",),
    "container.extra=[ubuntu]": ("'ubuntu' would be taken for the image",),
}


@pytest.mark.parametrize("word", WRONG)
def test_bad_values_are_named_before_anything_is_contacted(word: str, launcher: Launcher) -> None:
    """With the key and what is legal."""
    engine = [] if word.startswith("container=") else ["container=docker"]
    image = [] if word.startswith("container.image") else ["container.image=bare"]
    done = launcher(*engine, *(image if engine else []), word)
    assert done.code == 2, done
    for text in WRONG[word]:
        assert text in done.err, done


def test_keys_of_a_container_need_an_engine(launcher: Launcher) -> None:
    """Each is named."""
    done = launcher("container.image=bare", "container.shm_size=1g")
    assert done.code == 2, done
    keys = "container.image,container.shm_size"
    assert f"{keys}: ranks run in no container without an engine" in done.err
    assert "choose one: container=docker" in done.err
