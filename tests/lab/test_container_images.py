"""Images that a launch brings to hosts: built there from a Dockerfile, or sent from here."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.engines import (
    DOCKER,
    FOLDER,
    IMAGE,
    Daemon,
    daemons,
    local_daemon,
    make_image,
    missing,
)
from tests.lab.engines import overrides as bare_overrides
from tests.lab.lab import Lab, LabFactory
from tests.lab.launching import Launcher
from tests.lab.waiting import wait_until

pytestmark = pytest.mark.containers

BOTH = "cluster=lab"
BUILD = "container.build=docker"
READ_MARK = ("task.command=cat /context/mark", "task.entry=plain")
LAYER_MB, BIG_MB, DISK_MB = 3, 40, 60


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
    """Their daemons, with the bare image and small disks."""
    for host in docker_lab.hosts.values():
        mount = f"mount -t tmpfs -o size={DISK_MB}m none {FOLDER}/root"
        host.sh(f"mkdir -p {FOLDER}/root && {mount}", user="root")
    yield from daemons(docker_lab, tmp_path_factory.mktemp("docker"))


@pytest.fixture
def user(docker_lab: Lab, docker: dict[str, Daemon], launcher: Launcher) -> Iterator[Launcher]:
    """A user whose conf/ names these hosts; no container is left there in the end."""
    docker_lab.write_cluster(launcher.conf)
    for daemon in docker.values():
        daemon.remove_images()  # that another test has left, with layers of this one's
        daemon.revive()
    yield launcher
    assert not any(daemon.containers() for daemon in docker.values())


def overrides(*more: str) -> list[str]:
    """Return the words of a launch that says itself which image."""
    return [word for word in bare_overrides(*more) if not word.startswith("container.image=")]


def write_context(user: Launcher, mark: str, *steps: str) -> Path:
    """Write a Dockerfile that adds a file to the bare image."""
    folder = user.folder / "docker"
    folder.mkdir(exist_ok=True)
    for name in ("mark", "secret.txt"):
        (folder / name).write_text(mark)
    (folder / ".dockerignore").write_text("*.txt\n")
    lines = [f"FROM {IMAGE}", "ADD . /context/", *steps]
    (folder / "Dockerfile").write_text("\n".join([*lines, ""]))
    return folder


def test_an_image_is_built_once_on_each_host(user: Launcher, docker: dict[str, Daemon]) -> None:
    """Its output is seen as it comes; the same files are not built again, others are."""
    write_context(user, "first", "RUN echo step one; ls /context")
    done = user(BOTH, *overrides(), BUILD, *READ_MARK)
    assert done.code == 0, done
    for node in docker:
        assert re.search(rf"{node}.*step one", done.out), done
        assert done.log(node, 0 if node == "node1" else 1) == "first", done
    assert "secret.txt" not in done.out
    assert re.search(r"image: runner-build:[0-9a-f]{16}", done.err), done
    again = user(BOTH, *overrides(), BUILD, *READ_MARK)
    assert (again.code, "step one" in again.out) == (0, False), again
    write_context(user, "second")
    changed = user(BOTH, *overrides(), BUILD, *READ_MARK)
    assert (changed.code, changed.log("node2", 1)) == (0, "second"), changed
    repeated = user(f"rerun={done.folder.name}")
    assert repeated.code == 0, repeated
    assert repeated.log("node2", 1) == "first", repeated
    assert "no longer those of runner-build" in repeated.err, repeated
    cleaned = user("clean", BOTH, "--images", "--older-than", "0s", "--yes")
    counts = [int(count) for count in re.findall(r"(\d+) images removed", cleaned.out)]
    assert (cleaned.code, len(counts), min(counts) >= 2) == (0, len(docker), True), cleaned
    for daemon in docker.values():
        images = daemon.host.sh(f"{DOCKER} images --format {{{{.Repository}}}}").split()
        assert "runner-build" not in images
        assert IMAGE in images


def test_a_build_that_fails_starts_nothing(user: Launcher, docker: dict[str, Daemon]) -> None:
    """The step that failed is named for each host."""
    write_context(user, "broken", "RUN echo about to fail; exit 3")
    done = user(BOTH, *overrides(), BUILD, *READ_MARK)
    assert done.code == 3, done
    assert done.out.count("about to fail") >= len(docker), done
    assert "error: node[1-2]: container.build: it ended with 3: " in done.err, done
    assert not done.folder.exists() or done.folder.name == "runs"


def test_a_build_ends_by_ctrl_c(user: Launcher, docker: dict[str, Daemon]) -> None:
    """Nothing was started, and its steps are gone."""
    write_context(user, "slow", "RUN echo waiting; sleep 600")
    controller = user.start(BOTH, *overrides(), BUILD, *READ_MARK)
    controller.until_printed("waiting", 2)
    controller.send(signal.SIGINT)
    done = controller.wait()
    assert done.code == 130, done
    assert "nothing was started" in done.err
    # The engine removes the container of a step once it has noticed.
    wait_until(lambda: not any(d.containers() for d in docker.values()), "no step to be left")
    for daemon in docker.values():
        sleeping = [each for each in daemon.host.processes() if "sleep 600" in each.cmdline]
        assert not sleeping


def test_bad_contexts_are_named_before_anything_is_contacted(user: Launcher) -> None:
    """The key, the file, and what to do."""
    for path, text in (
        ("nowhere", "container.build: there is no"),
        (".", "Dockerfile"),
    ):
        done = user(BOTH, *overrides(), f"container.build={path}", *READ_MARK)
        assert (done.code, text in done.err) == (2, True), done
    write_context(user, "big", "").joinpath("big").write_bytes(bytes(3_000_000))
    done = user(BOTH, *overrides(), BUILD, "deploy.max_mb=2", *READ_MARK)
    assert (done.code, "more than deploy.max_mb=2" in done.err) == (2, True), done
    both = user(BOTH, *bare_overrides(), BUILD, *READ_MARK)
    assert (both.code, "container.image" in both.err) == (2, True), both
    planned = user(BOTH, *overrides(), BUILD, "deploy.max_mb=9", "dry_run=true", *READ_MARK)
    assert (planned.code, "dry runs" in planned.err) == (3, True), planned
    checked = user("check", BOTH, *overrides(), BUILD, "deploy.max_mb=9", *READ_MARK)
    assert "the start of a launch builds it there" in " ".join(checked.out.split()), checked
    assert (checked.code, " error " in checked.out) == (0, False), checked


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A daemon on the user's own machine; its images have a layer more than the bare one."""
    folder = tmp_path_factory.mktemp("local")
    with local_daemon(make_image(folder)) as address:
        for name, size in (("top", LAYER_MB), ("big", BIG_MB)):
            context = folder / name
            context.mkdir()
            (context / "mark").write_text("from here")
            (context / "blob").write_bytes(os.urandom(size * 1_000_000))
            (context / "Dockerfile").write_text(f"FROM {IMAGE}\nADD . /context/\n")
            build = [DOCKER, "--host", address, "build", "--quiet", "--tag", name, str(context)]
            subprocess.run(build, check=True, stdout=subprocess.DEVNULL, timeout=60)
        yield address


def test_an_image_of_here_is_sent_to_hosts_that_lack_it(
    user: Launcher, docker: dict[str, Daemon], local: str
) -> None:
    """With the layers that they lack, once; a host that has none of them gets it whole."""
    words = (*overrides(), "container.image=top", "container.push_image=true", *READ_MARK)
    docker["node2"].host.sh(f"{DOCKER} image rm {IMAGE}", user="root")
    archive = subprocess.run(
        [DOCKER, "--host", local, "save", IMAGE], check=True, capture_output=True
    ).stdout
    docker["node1"].host.sh(f"{DOCKER} image rm {IMAGE}", user="root")
    loading = docker["node1"].host.popen([DOCKER, "load"], user="root", stdin=subprocess.PIPE)
    loading.stdin.buffer.write(archive)  # type: ignore[union-attr]
    loading.communicate()
    done = user(BOTH, *words, env={"DOCKER_HOST": local})
    assert done.code == 0, done
    sizes = dict(re.findall(r"image top: (\S+ of \S+) MB sent to (node\d)", done.err))
    assert len(sizes) == 2, done
    by_node = {node: [float(n) for n in text.split(" of ")] for text, node in sizes.items()}
    assert by_node["node1"][0] < by_node["node1"][1] == by_node["node2"][0], done
    assert [done.log("node1", 0), done.log("node2", 1)] == ["from here"] * 2, done
    again = user(BOTH, *words, env={"DOCKER_HOST": local})
    assert (again.code, "sent to" in again.err) == (0, False), again


def test_an_image_that_is_not_here_is_not_sent(user: Launcher, local: str) -> None:
    """Nothing is contacted."""
    words = (*overrides(), "container.image=absent", "container.push_image=true", *READ_MARK)
    done = user(BOTH, *words, env={"DOCKER_HOST": local})
    assert (done.code, "has no image absent" in done.err) == (2, True), done
    done = user(BOTH, *words, env={"DOCKER_HOST": "unix:///nowhere"})
    assert (done.code, "docker does not work on this machine" in done.err) == (2, True), done


def test_a_disk_that_is_too_small(user: Launcher, docker: dict[str, Daemon], local: str) -> None:
    """It is refused before anything is sent; where the room cannot be seen, as it is full."""
    words = (*overrides(), "container.image=big", "container.push_image=true", *READ_MARK)
    refused = user(BOTH, *words, env={"DOCKER_HOST": local})
    assert refused.code == 3, refused
    said = re.findall(r"error: (\S+): container.push_image: .* MB left, and big needs", refused.err)
    # Nodes that have as much left share a line.
    assert said in (["node[1-2]"], ["node1", "node2"]), refused
    assert "sent to" not in refused.err
    for daemon in docker.values():
        daemon.host.sh(f"chmod 700 {FOLDER}", user="root")
    full = user(BOTH, *words, env={"DOCKER_HOST": local})
    assert (full.code, "no space left on device" in full.err) == (3, True), full
    for daemon in docker.values():
        daemon.host.sh(f"chmod 755 {FOLDER}", user="root")
        assert "big" not in daemon.host.sh(f"{DOCKER} images")


def test_no_image_is_brought_where_an_engine_does_not_work(user: Launcher) -> None:
    """It is said at once, and the other hosts are not kept busy with a build."""
    write_context(user, "in vain", "RUN echo building")
    words = overrides(f"container.program={DOCKER}-absent")
    done = user(BOTH, *words, BUILD, *READ_MARK)
    assert done.code == 3, done
    assert "node[1-2]: container.program: there is no" in done.err, done
    assert "building" not in done.out
