"""Trainings in docker's containers, where hosts have no torch; the page's lines, entry points."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.lab.by_hand import TASKS
from tests.lab.by_hand import python as by_hand
from tests.lab.causing import etcd_on
from tests.lab.engines import DOCKER, IMAGE, Daemon, daemons, missing, mounts, overrides
from tests.lab.inspecting import proven_nodes
from tests.lab.lab import Lab, LabFactory
from tests.lab.launching import PROGRAMS, Launcher, Result
from tests.lab.test_command_lines import ROWS, Row, write_project

pytestmark = pytest.mark.containers


GRADIENTS = str(PROGRAMS / "gradients.py")
TORCHLESS_PYTHON = "/usr/bin/python3"
IMAGES = sorted({row.ours.partition("container.image=")[2].split(" ")[0] for row in ROWS} - {""})
MARK = "entry_point_ran"
ENTRY_POINT = f"""\
#!/bin/sh
echo "== a banner =="
[ "$RUNNER_RUN_ID" ] && echo "$1" >>{MARK}
exec "$@"
"""
"""In the place of a launcher, or of what prints a banner: it leaves a mark where ranks work."""

OTHER_ENTRY_POINT = f'FROM {IMAGE}\nENTRYPOINT ["/bin/echo"]\n'
"""Of a program that does not run its arguments, as a launcher's is for what it takes for them."""

DOCKERFILE = f"""\
FROM {IMAGE}
ADD entry /entry
ENTRYPOINT ["/entry"]
"""


@pytest.fixture(scope="module")
def hosts(lab_factory_for_session: LabFactory) -> Iterator[Lab]:
    """Two hosts."""
    if reason := missing():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)
    with lab_factory_for_session(n=2) as lab:
        yield lab


@pytest.fixture(scope="module")
def docker(hosts: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Daemon]]:
    """Their daemons, which have the images of the page, of a shell and an entry point."""
    folder = tmp_path_factory.mktemp("docker")
    context = folder / "context"
    context.mkdir()
    (context / "Dockerfile").write_text(DOCKERFILE)
    (context / "entry").write_text(ENTRY_POINT)
    (context / "entry").chmod(0o755)
    tags = " ".join(f"-t {image}" for image in IMAGES)
    for started in daemons(hosts, folder):
        for daemon in started.values():
            daemon.host.sh(f"{DOCKER} build -q {tags} {context}", user="root", timeout=60)
            build = f"{DOCKER} build -q -t other -"
            daemon.host.sh(build, user="root", timeout=60, stdin=OTHER_ENTRY_POINT)
        yield started


@pytest.fixture
def user(hosts: Lab, docker: dict[str, Daemon], launcher: Launcher) -> Iterator[Launcher]:
    """Somebody whose hosts have a Python without torch; nothing of theirs is left there."""
    hosts.write_cluster(launcher.conf, python=TORCHLESS_PYTHON)
    yield launcher
    left = {name: daemon.containers() for name, daemon in docker.items()}
    assert not any(left.values()), left


@pytest.mark.all  # `make test` has torchrun inside, where no host has torch, by the lines below
def test_gradients_are_those_of_one_process_where_no_host_has_torch(
    user: Launcher, hosts: Lab, tmp_path: Path
) -> None:
    """Two ranks in a container on each of two hosts: each step is that of the joined batch."""
    import torch  # noqa: PLC0415 - only the tests that run may need it

    for host in hosts.hosts.values():
        found = host.sh(f"{TORCHLESS_PYTHON} -c 'import torch' 2>&1", check=False)
        assert "No module named 'torch'" in found
    alone, joined = tmp_path / "alone", tmp_path / "joined"
    for folder in (alone, joined):
        folder.mkdir()
        folder.chmod(0o1777)
    steps = ["--epochs=1", "--batch_size=240", "--log_every=2"]
    args = json.dumps([str(joined), str(TASKS / "ddp.py"), *steps])
    seen = json.dumps([*mounts(), f"{joined}:{joined}"])
    done = user(
        *("cluster=lab", "cluster.nproc_per_node=2", "task.env.OMP_NUM_THREADS=1"),
        *(f"task.script={GRADIENTS}", "task.args_style=raw", f"task.args={args}"),
        *overrides(f"container.mounts={seen}", python=sys.executable),
    )
    assert done.code == 0, done
    assert done.log("node1", 0).startswith("world size 4, backend gloo, device cpu\n")
    assert proven_nodes(done.err) == 2, done

    single = by_hand(GRADIENTS, str(alone), str(TASKS / "single.py"), *steps)
    assert single.returncode == 0, single
    (expected, _), *_ = kept(alone)
    ranks = kept(joined)
    assert len(ranks) == 4
    assert len(expected) == 5
    for gradients, averaged in ranks:
        assert averaged == [1] * len(expected)
        for step, (mine, theirs) in enumerate(zip(gradients, expected, strict=True)):
            for one, other in zip(mine, theirs, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6, msg=f"step {step}")
    result = done.log("node1", 0).splitlines()[-1]
    assert result.startswith("test loss ")
    assert numbers(result) == pytest.approx(numbers(single.stdout.splitlines()[-1]), abs=2e-4)


def kept(folder: Path) -> list[tuple[list[list[Any]], list[int]]]:
    """Return what the ranks of a training kept, by rank."""
    import torch  # noqa: PLC0415

    return [torch.load(path) for path in sorted(folder.glob("rank_*.pt"))]


def numbers(line: str) -> list[float]:
    """Return the numbers in a line of words."""
    words = line.replace(",", " ").split()
    return [float(word) for word in words if word.replace(".", "").isdigit()]


@pytest.fixture
def reader(hosts: Lab, user: Launcher) -> Launcher:
    """Who has the files of the page, and two of its hosts, whose docker sees what it has to."""
    write_project(user.folder)
    cluster = hosts.cluster(python=TORCHLESS_PYTHON)
    cluster["nodes"] = dict(zip(("gpu1", "gpu2"), cluster["nodes"].values(), strict=True))
    container = {"program": DOCKER, "python": sys.executable, "mounts": mounts()}
    files = {
        "cluster/mine": cluster,
        "container/docker": {"defaults": ["base"], "engine": "docker", **container},
    }
    for name, values in files.items():
        file = user.conf / f"{name}.yaml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(yaml.safe_dump(values, sort_keys=False))
    return user


LINES = {
    "torchelastic --standalone": (8, 1, False),
    "torchelastic etcd": (16, 2, False),
    "pytorch/pytorch": (2, 1, False),
    "entrypoint=image": (2, 1, True),
}
"""Lines of the page by what they have: ranks, nodes, and whether the entry point is run."""


def has(row: Row, part: str) -> bool:
    """Whether a line of docker's has all the words of a part."""
    text = f"{row.theirs} {row.ours}"
    return row.family == "docker run" and all(word in text for word in part.split())


@pytest.mark.parametrize("part", LINES)
def test_a_line_of_docker_runs(part: str, reader: Launcher, hosts: Lab) -> None:
    """Every rank is in the image, with the arguments of theirs; the entry point as the page says.

    With two of the four hosts; what is an image's there is one of a shell here.
    """
    (row,) = (row for row in ROWS if has(row, part))
    ranks, nodes, is_run = LINES[part]
    filled = {"nnodes=1:4": "nnodes=2:2", "[/data:/data:ro]": json.dumps(mounts())}
    with contextlib.ExitStack() as around:
        if "etcd" in part:
            filled["etcd1:2379"] = around.enter_context(etcd_on(hosts, "node2"))
        done = reader(*(replaced(word, filled) for word in row.words))
    assert done.code == 0, done
    plan = json.loads((done.folder / "plan.json").read_text())
    assert [node["order"]["container"]["engine"] for node in plan["nodes"]] == ["docker"] * nodes
    assert proven_nodes(done.err) == nodes, done
    told = said_by_ranks(done)
    assert sorted(int(each["env"]["RANK"]) for each in told) == list(range(ranks))
    assert {each["env"]["WORLD_SIZE"] for each in told} == {str(ranks)}
    assert {tuple(each["argv"]) for each in told} == {row.asked.args}
    marks = f"cat .runner/runs/{done.folder.name}/*/work/{MARK} 2>/dev/null"
    entered = [host.sh(marks, check=False).split() for host in hosts.hosts.values()]
    assert [len(each) for each in entered] == [int(is_run), 0]


def test_an_entry_point_that_runs_something_else_is_found_out(user: Launcher) -> None:
    """Before the start, whatever its exit code; the cure is named."""
    image = ("container.image=other", "container.entrypoint=image")
    done = user.run_ranks("print=up", "cluster=lab", *overrides(*image, python=sys.executable))
    assert done.code == 3, done
    assert "container.entrypoint: other: " in done.err
    assert "its entry point has to run the words that it is given" in done.err


def replaced(word: str, places: dict[str, str]) -> str:
    """Return a word with what a reader fills in."""
    for there, here in places.items():
        word = word.replace(there, here)
    return word


def said_by_ranks(done: Result) -> list[dict[str, Any]]:
    """Return what the program of the page printed, by every rank of a run."""
    logs = sorted((done.folder / "logs").glob("*/rank_*.out"))
    return [json.loads(log.read_text().splitlines()[-1]) for log in logs]


def test_the_page_runs_each_of_its_images() -> None:
    """One that is added to the page is in the table above."""
    families = [row for row in ROWS if row.family == "docker run"]
    assert [[has(row, part) for part in LINES].count(True) for row in families] == [1] * len(LINES)
