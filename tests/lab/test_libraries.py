"""Libraries of docs/programs.md: their tasks and commands are tried as they are printed."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.golden.here import write
from tests.lab.lab import Lab, need
from tests.lab.launching import ROOT, Launcher, Result
from tests.lab.test_docs import DECIMALS, missing_lines

pytestmark = [pytest.mark.tasks, pytest.mark.all, pytest.mark.slow]

PAGE = ROOT / "docs" / "programs.md"
PROGRAMS = Path(__file__).parent / "bring"
"""A folder for each library, with what is in its user's project already."""

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
COMMANDS = "bash"
"""How the page marks commands of libraries; those marked `sh` are tried in test_docs.py."""

NODES = ("gpu1", "gpu2")

Follow = Callable[[str, str], list[Result]]


@pytest.fixture
def cluster(lab: Lab, launcher: Launcher) -> Launcher:
    """A user whose cluster `mine` has two hosts with two ranks each."""
    described = lab.cluster([*lab.hosts][:2], nproc_per_node=2)
    described["nodes"] = dict(zip(NODES, described["nodes"].values(), strict=True))
    (launcher.conf / "cluster" / "mine.yaml").write_text(yaml.safe_dump(described))
    return launcher


@pytest.fixture
def follow(cluster: Launcher, steps: Path) -> Follow:
    """Does what the section of a library says; returns how its commands ended.

    Each must succeed, and standard output have the lines below the last, whatever their decimals.
    """

    def do(title: str, folder: str) -> list[Result]:
        write_files(title, folder, cluster, steps)
        done: list[Result] = []
        for kind, text in blocks(title, steps):
            for line in text.splitlines() if kind == COMMANDS else ():
                program, *words = shlex.split(line, comments=True)
                assert program == "runner"
                done.append(cluster(*words, seconds=150))
                assert done[-1].code == 0, done[-1]
            if not kind and done:
                assert missing_lines(text, done[-1].out, DECIMALS) == [], done[-1]
        return done

    return do


def blocks(title: str, shared: Path) -> Iterator[tuple[str, str]]:
    """Yield the kind of each block of a section, "" for output, and its text."""
    section = PAGE.read_text(encoding="utf-8").split(f"\n## {title}\n")[1].split("\n## ")[0]
    yield from BLOCK.findall(section.replace("/shared", str(shared)))


def write_files(title: str, folder: str, user: Launcher, shared: Path) -> None:
    """Make a project of the library's program and of the section's YAML (first line: `# PATH`)."""
    subprocess.run(["git", "init", "-q", str(user.folder)], check=True)
    files = {
        str(source.relative_to(PROGRAMS / folder)): source.read_text().replace(
            "/shared", str(shared)
        )
        for source in (PROGRAMS / folder).rglob("*")
        if source.is_file()
    }
    for kind, text in blocks(title, shared):
        if kind == "yaml":
            files[text.partition("\n")[0].removeprefix("# ")] = text
    write(user.folder, files)


def need_library(name: str) -> None:
    install = "python -m pip install -c constraints.txt $(.ci/group libraries)"
    need("" if importlib.util.find_spec(name) else f"no {name} here: {install}")


def losses(*done: Result) -> list[float]:
    return [
        float(loss) for each in done for loss in re.findall(r"ranks, loss (\d+\.\d+)", each.out)
    ]


def assert_falling(numbers: list[float]) -> None:
    assert len(numbers) > 2
    assert numbers == sorted(set(numbers), reverse=True)


def test_a_hydra_program(follow: Follow) -> None:
    """Beside our YAML in one conf/; each rank's output folder comes home."""
    trained, planned, swept = follow("Hydra", "hydra")
    assert_falling(losses(trained))
    for rank in range(4):
        folder = trained.folder / "outputs" / NODES[rank // 2] / "outputs" / f"{rank}"
        assert "width 32, lr 0.05" in (folder / "train.log").read_text()
        assert "model.width=32" in (folder / ".hydra" / "overrides.yaml").read_text()
    assert "'~steps' +epochs=3" in planned.out + planned.err
    for rate in ("lr=0.01", "lr=0.1"):
        assert rate in swept.out + swept.err


def test_ray(follow: Follow, cluster: Launcher) -> None:
    """The master has head and driver, whose end is that of the run."""
    need_library("ray")
    cluster.env["RAY_AUTH_TOKEN"] = "0123456789abcdef" * 4
    (done,) = follow("Ray", "ray")
    assert "gpu2  rank 1 was stopped" in done.err


def test_lightning(follow: Follow, steps: Path) -> None:
    """It takes torchrun's ranks for its own, goes on from its checkpoint, and starts its own."""
    need_library("lightning")
    done = follow("Lightning", "lightning")
    assert_falling(losses(*done))
    assert [len(each.result["ranks"]) for each in done] == [4, 4, 2]
    assert (steps / "line" / "last.ckpt").stat().st_size > 0
