"""Commands of README and docs: each works as printed, and prints what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.lab.lab import LOGIN_USER, Lab, LabFactory
from tests.lab.launching import ROOT, TORCHLESS
from tests.lab.waiting import PATIENCE

PAGES = ("README.md", "docs/commands.md", "docs/programs.md", "docs/troubleshooting.md")
LIKE_ONE_BEFORE = "runner 'task.outputs"
"""How launches of README begin whose like is run already; their plans are made."""

AS_CONFIGURED = 'mount --bind ~/ssh_config /etc/ssh/ssh_config && exec bash -c "$0"'
"""OpenSSH takes no other home than that of the passwd file, so the names stand in /etc, for us."""

TRAIN = """\
import argparse, os
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=1.0)
print("rank", os.environ["RANK"], "lr", parser.parse_args().lr)
"""

PATH = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
BLOCK = re.compile(
    r"^```sh\n(?P<lines>.*?)^```\n(?:```\n(?P<output>.*?)^```\n)?", re.MULTILINE | re.DOTALL
)
ELLIPSIS = "…"
ANY_NUMBER = r"\d+(\\\.\d+)?"
DECIMALS = r"\d+\\\.\d+"
"""As `re.escape` has them."""

RUN_ID = re.compile(r"\d{4}-\d{4}(-\w+)+-\w{4}")


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
    return {"HOME": str(home), "PATH": path}


def typed(line: str, cwd: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Type a line into a shell; return how it ended, and all that it printed."""
    return subprocess.run(
        ["unshare", "--mount", "bash", "-c", AS_CONFIGURED, line],
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200 * PATIENCE,
        check=False,
    )


@pytest.fixture(scope="module")
def gpus(lab_factory: LabFactory) -> Iterator[Lab]:
    """Three hosts on which `python3` has torch, as the pages have it; its agents are stand-ins."""
    options = [f"SetEnv PATH={PATH} PYTHONPATH={TORCHLESS}"]
    with lab_factory(names=["gpu1", "gpu2", "gpu3"], sshd_options=options) as lab:
        yield lab


def commands(page: str) -> list[str]:
    text = "\n".join(block["lines"] for block in BLOCK.finditer((ROOT / page).read_text()))
    return [line for line in text.splitlines() if line.strip()]


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [PAGES[0], *(pytest.param(page, marks=pytest.mark.all) for page in PAGES[1:])]
)
def test_every_command_works(page: str, gpus: Lab, tmp_path: Path) -> None:
    """In order, each with exit code 0, in a project of somebody who can `ssh gpu1`."""
    project = tmp_path / "project"
    (project / "data").mkdir(parents=True)
    (project / "train.py").write_text(TRAIN)
    (project / "fabfile.py").write_text("from runner.fab import *\n")
    subprocess.run(["git", "init", "-q", str(project)], check=True)
    env = {**at_home(gpus, tmp_path / "home"), "PYTHONPATH": str(ROOT)}
    lines = commands(page)
    assert lines
    if not any("runner init" in line for line in lines):
        lines.insert(0, next(line for line in commands("README.md") if "runner init" in line))
    if page == "docs/commands.md":
        lines.sort(key=lambda line: "runner init" not in line)
    for line in lines:
        is_planned = line.startswith(LIKE_ONE_BEFORE)
        typing = line.replace("runner ", "runner dry_run=offline ", 1) if is_planned else line
        done = typed(typing, project, env)
        assert done.returncode == 0, f"{typing}\n{done.stdout}"
        assert "Traceback" not in done.stdout


def checkout(folder: Path) -> Path:
    """Return a clone of what git tracks or would track here, with its environment."""
    folder.mkdir()
    names = "conf examples runner pyproject.toml fabfile.py .gitignore"
    listing = f"git ls-files -z --cached --others --exclude-standard {names}"
    copying = f"{listing} | tar --null --ignore-failed-read -chT - | tar -xC {folder}"
    subprocess.run(["bash", "-c", copying], cwd=ROOT, check=True)
    (folder / ".venv").symlink_to(sys.prefix)
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    return folder


def says(line: str, printed: str, numbers: str) -> bool:
    """Is this the page's line, whatever such numbers, its run ids and widths are?"""
    words = RUN_ID.sub("RUN", line).split()
    patterns = (re.sub(numbers, r"\\d+(\\.\\d+)?", re.escape(word)) for word in words)
    text = r"\s*" + r"\s+".join(patterns).replace("RUN", RUN_ID.pattern) + r"\s*"
    return re.fullmatch(text, printed) is not None


def missing_lines(output: str, printed: str, numbers: str = ANY_NUMBER) -> list[str]:
    """Return the lines of the page that were not printed, in their order; numbers may differ."""
    left = re.sub(r"(\d+ [hm] )+(?=\d+ s\b)", "", printed).splitlines()  # on a busy machine
    missing = []
    for line in output.splitlines():
        found = [at for at, each in enumerate(left) if says(line, each, numbers)]
        if found:
            left = left[found[0] + 1 :]
        elif line != ELLIPSIS:
            missing.append(line)
    return missing


@pytest.mark.tasks
@pytest.mark.all
@pytest.mark.slow
def test_the_ten_steps_are_true(lab_factory: LabFactory, tmp_path: Path) -> None:
    """Typed in a fresh checkout, in order, each with exit code 0, but for `diff`."""
    with lab_factory(names=["gpu1", "gpu2"], sshd_options=[f"SetEnv PATH={PATH}"]) as lab:
        clone = checkout(tmp_path / "runner")
        env = {**at_home(lab, tmp_path / "home"), "PYTHONPATH": str(clone)}
        problems = []
        for block in BLOCK.finditer((ROOT / "docs" / "ten-steps.md").read_text()):
            printed = ""
            for line in block["lines"].splitlines():
                done = typed(line, clone, env)
                printed += done.stdout
                if done.returncode != int(line.startswith("diff ")):
                    problems.append(f"{line}\nexit code {done.returncode}\n{done.stdout}")
            missing = missing_lines(block["output"] or "", printed)
            problems += [f"not printed: {line}\n{printed}" for line in missing]
        assert not problems, "\n\n".join(problems)
