"""Commands of README and docs: each works as printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.lab import LOGIN_USER, Lab, LabFactory
from tests.lab.launching import ROOT, TORCHLESS
from tests.lab.waiting import PATIENCE

PAGES = ("README.md", "docs/commands.md", "docs/programs.md", "docs/troubleshooting.md")
LIKE_ONE_BEFORE = (
    "runner cluster=mine task=train task.args.lr=0.1",
    "runner cluster=mine task=train -- --lr 0.1",
    "runner rerun=latest task.args.lr=0.2",
)
"""Launches of README whose like is run already; their plans are made."""

AS_CONFIGURED = 'mount --bind ~/ssh_config /etc/ssh/ssh_config && exec bash -c "$0"'
"""OpenSSH takes no other home than that of the passwd file, so the names stand in /etc, for us."""

TRAIN = """\
import argparse, os
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=1.0)
print("rank", os.environ["RANK"], "lr", parser.parse_args().lr)
"""


@pytest.fixture(scope="module")
def gpus(lab_factory_for_session: LabFactory) -> Iterator[Lab]:
    """Three hosts on which `python3` has torch, as the pages have it; its agents are stand-ins."""
    path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
    options = [f"SetEnv PATH={path} PYTHONPATH={TORCHLESS}"]
    with lab_factory_for_session(names=["gpu1", "gpu2", "gpu3"], sshd_options=options) as lab:
        yield lab


def at_home(lab: Lab, home: Path) -> dict[str, str]:
    """Make a home from which `ssh NAME` reaches each host; return an environment for it."""
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "known_hosts").write_text(lab.known_hosts.read_text())
    (home / "ssh_config").write_text(
        "".join(
            f"Host {name}\n  HostName {host.address}\n  User {LOGIN_USER}\n"
            f"  IdentityFile {lab.key}\n  UserKnownHostsFile {home}/.ssh/known_hosts\n"
            for name, host in lab.hosts.items()
        )
    )
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {"HOME": str(home), "PATH": path, "PYTHONPATH": str(ROOT)}


@pytest.fixture
def stranger(gpus: Lab, tmp_path: Path) -> dict[str, str]:
    """Somebody who can `ssh gpu1`, stands in a project of theirs, and has the environment."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text(TRAIN)
    (project / "data").mkdir()
    subprocess.run(["git", "init", "-q", str(project)], check=True)
    return {**at_home(gpus, tmp_path / "home"), "PWD": str(project)}


def commands(page: str) -> list[str]:
    """Return the lines of the page's `sh` blocks."""
    blocks = re.findall(r"^```sh\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.splitlines() if line.strip()]


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [PAGES[0], *(pytest.param(page, marks=pytest.mark.all) for page in PAGES[1:])]
)
def test_every_command_works(page: str, stranger: dict[str, str]) -> None:
    """In order, each with exit code 0."""
    lines = commands(page)
    assert len(lines) >= 3
    if not any("runner init" in line for line in lines):
        lines.insert(0, next(line for line in commands("README.md") if "runner init" in line))
    if page == "docs/commands.md":
        lines.sort(key=lambda line: "runner init" not in line)
    for line in lines:
        is_planned = line.startswith(LIKE_ONE_BEFORE)
        typed = line.replace("runner ", "runner dry_run=offline ", 1) if is_planned else line
        done = subprocess.run(
            ["unshare", "--mount", "bash", "-c", AS_CONFIGURED, typed],
            cwd=stranger["PWD"],
            env=stranger,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=100 * PATIENCE,
            check=False,
        )
        assert done.returncode == 0, f"{typed}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
