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

pytestmark = pytest.mark.tasks

PAGE = ROOT / "docs" / "ten-steps.md"
BLOCK = re.compile(
    r"^```sh\n(?P<lines>.*?)^```\n(?:```\n(?P<output>.*?)^```\n)?", re.MULTILINE | re.DOTALL
)
ELLIPSIS = "…"
RUN_ID_TEXT = re.compile(r"\d{4}-\d{4}(-\w+)+-\w{4}")
LOSS = re.compile(r'\bloss(?:":)? (\d+\.\d+)')
ACCURACY = re.compile(r"\baccuracy (\d+\.\d+) %")
STEPS = re.compile(r'(?:"steps?": |after )(\d+)(?= steps|,)')
ADDING_UP = 2e-4
"""How far a loss may be from the page's, which is that of every program on it: ranks, threads and
processors add the same numbers up in another order. The losses of char_gpt, whose model is larger
and which trains longer, may be apart by ten times that.
"""


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
        [*command, "conf", "runner"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for name in ("pyproject.toml", "fabfile.py", ".gitignore", *listed.rstrip("\0").split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    (folder / ".venv").symlink_to(sys.prefix)
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    return folder


def pattern(line: str) -> re.Pattern[str]:
    """Return what matches a line of the page, whatever its numbers, run ids and widths are."""
    words = RUN_ID_TEXT.sub("RUN", line).split()
    numbers = (re.sub(r"\d+(\\\.\d+)?", r"\\d+(\\.\\d+)?", re.escape(word)) for word in words)
    indent = " *" if line.startswith(" ") else ""
    return re.compile(indent + r"\s+".join(numbers).replace("RUN", RUN_ID_TEXT.pattern) + r"\s*")


def says(line: str, printed: str) -> bool:
    """Is this the page's line? With its steps, accuracy and loss, and else any numbers."""
    of_digits = ACCURACY.search(line) or '"step"' in line
    apart = ADDING_UP if of_digits else 10 * ADDING_UP
    return (
        pattern(line).fullmatch(printed) is not None
        and figures(LOSS, printed) == pytest.approx(figures(LOSS, line), abs=apart)
        and figures(ACCURACY, printed) == figures(ACCURACY, line)
        and figures(STEPS, printed) == figures(STEPS, line)
    )


def figures(kind: re.Pattern[str], line: str) -> list[float]:
    """Return the figures of a kind in a line."""
    return [float(figure) for figure in kind.findall(line)]


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


def blocks() -> Iterator[re.Match[str]]:
    """Yield the blocks of commands, each with what the page says that it prints."""
    return BLOCK.finditer(PAGE.read_text())


def test_the_programs_differ_as_the_page_says() -> None:
    """Every line that it shows of a `diff`."""
    shown = 0
    for block in blocks():
        command = block["lines"].partition("\n")[0].split()
        if command[0] == "diff":
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            missing = missing_lines(block["output"], done.stdout)
            assert not [line for line in missing if line[0] in "<>-"], missing
            shown += 1
    assert shown == 3


def test_a_loss_on_the_page_is_the_one_that_is_printed() -> None:
    """To the last digit but one; so are accuracy and steps. A rate or a run id may be another."""
    progress = '{"step": 20, "steps": 290, "loss": 1.1478, "rate": 10512.2, "unit": "images"}'
    result = "[gpu1:0] test loss 0.1094, test accuracy 95.83 % after 290 steps"
    written = "[gpu1:0] test loss 2.0987 after 300 steps, 1411 tokens per second"

    assert not missing_lines(progress, progress.replace("10512.2", "9.0"))
    assert not missing_lines(progress, progress.replace("1.1478", "1.1477"))
    assert missing_lines(progress, progress.replace("1.1478", "1.1481")) == [progress]
    assert missing_lines(progress, progress.replace("290", "220")) == [progress]
    assert missing_lines(result, result.replace("95.83", "96.11")) == [result]
    assert missing_lines(result, result.replace("0.1094", "0.1099")) == [result]
    assert missing_lines(result, result.replace("290", "291")) == [result]
    assert not missing_lines(written, written.replace("2.0987", "2.0979"))
    assert missing_lines(written, written.replace("2.0987", "2.1021")) == [written]


def test_the_page_says_one_result_of_ten_epochs() -> None:
    """Of every program, started by hand or by the runner, on any number of nodes."""
    told = re.findall(r"test loss .* after 290 steps", PAGE.read_text())
    assert len(told) == 8
    assert len(set(told)) == 1


@pytest.mark.all
@pytest.mark.slow
def test_the_page_is_true(two_hosts: Lab, tmp_path: Path) -> None:
    """In order, each with exit code 0, but for `diff`."""
    env = at_home(two_hosts, tmp_path / "home")
    clone = checkout(tmp_path / "runner")
    problems = []
    for block in blocks():
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
                timeout=900,
                check=False,
            )
            printed += done.stdout
            if done.returncode != int(line.startswith("diff ")):
                problems.append(f"{line}\nexit code {done.returncode}\n{done.stdout}")
        missing = missing_lines(block["output"] or "", printed)
        problems += [f"not printed: {line}\n{printed}" for line in missing]
    assert not problems, "\n\n".join(problems)
