"""The page of ten steps, typed in a fresh checkout: every command, and what it prints."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.lab import Lab, LabFactory
from tests.lab.launching import ROOT
from tests.lab.test_docs import AS_CONFIGURED, at_home
from tests.lab.waiting import PATIENCE

pytestmark = pytest.mark.tasks

PAGE = ROOT / "docs" / "ten-steps.md"
BLOCK = re.compile(
    r"^```sh\n(?P<lines>.*?)^```\n(?:```\n(?P<output>.*?)^```\n)?", re.MULTILINE | re.DOTALL
)
ELLIPSIS = "…"
RUN_ID = re.compile(r"\d{4}-\d{4}(-\w+)+-\w{4}")


@pytest.fixture
def two_hosts(lab_factory: LabFactory) -> Iterator[Lab]:
    """`gpu1` and `gpu2`, whose `python3` has torch."""
    path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
    with lab_factory(names=["gpu1", "gpu2"], sshd_options=[f"SetEnv PATH={path}"]) as lab:
        yield lab


def checkout(folder: Path) -> Path:
    """Return a clone of what git tracks or would track here, with its environment."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(
        [*command, "conf", "examples", "runner"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in ("pyproject.toml", "fabfile.py", ".gitignore", *listed.rstrip("\0").split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    (folder / ".venv").symlink_to(sys.prefix)
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    return folder


def says(line: str, printed: str) -> bool:
    """Is this the page's line, whatever its numbers, run ids and widths are?"""
    words = RUN_ID.sub("RUN", line).split()
    numbers = (re.sub(r"\d+(\\\.\d+)?", r"\\d+(\\.\\d+)?", re.escape(word)) for word in words)
    text = r"\s*" + r"\s+".join(numbers).replace("RUN", RUN_ID.pattern) + r"\s*"
    return re.fullmatch(text, printed) is not None


def missing_lines(output: str, printed: str) -> list[str]:
    """Return the lines of the page that were not printed, in their order."""
    left = printed.splitlines()
    missing = []
    for line in output.splitlines():
        found = [at for at, each in enumerate(left) if says(line, each)]
        if found:
            left = left[found[0] + 1 :]
        elif line != ELLIPSIS:
            missing.append(line)
    return missing


@pytest.mark.all
@pytest.mark.slow
def test_the_page_is_true(two_hosts: Lab, tmp_path: Path) -> None:
    """In order, each with exit code 0, but for `diff`."""
    env = at_home(two_hosts, tmp_path / "home")
    clone = checkout(tmp_path / "runner")
    problems = []
    for block in BLOCK.finditer(PAGE.read_text()):
        printed = ""
        for line in block["lines"].splitlines():
            done = subprocess.run(
                ["unshare", "--mount", "bash", "-c", AS_CONFIGURED, line],
                cwd=clone,
                env={**env, "PYTHONPATH": str(clone)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=200 * PATIENCE,
                check=False,
            )
            printed += done.stdout
            if done.returncode != int(line.startswith("diff ")):
                problems.append(f"{line}\nexit code {done.returncode}\n{done.stdout}")
        missing = missing_lines(block["output"] or "", printed)
        problems += [f"not printed: {line}\n{printed}" for line in missing]
    assert not problems, "\n\n".join(problems)
