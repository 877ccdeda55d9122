"""Cures of known failures, tried: the program fails, the cure is printed and applied, it runs."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.lab.lab import Lab
from tests.lab.launching import PLAIN_ENTRY, TORCHLESS, Launcher, Result

pytestmark = [pytest.mark.all, pytest.mark.promise(8)]

ON_ONE = ("cluster=lab", "cluster.only=[node1]", PLAIN_ENTRY)
TORCHRUN = (f"cluster.env.PYTHONPATH={TORCHLESS}", "cluster.nproc_per_node=1")
"""A stand-in for torchrun and torch.distributed.launch, which costs no import of torch."""

ARGPARSE = "import argparse\nparser = argparse.ArgumentParser()\n{}\nprint(parser.parse_args())\n"


@dataclass(frozen=True)
class Cure:
    """One failing program, run on this machine alone, and its cure.

    The words of `remedy` must stand in the printed cure, and `cured` is what they say.
    """

    cause: str
    files: dict[str, str]
    failing: tuple[str, ...]  # what is typed
    remedy: str
    cured: tuple[str, ...]  # what is typed then; of a word that was typed, the later one wins


CURES = (
    Cure(
        "local_rank_unknown",
        {"fail.py": ARGPARSE.format("parser.add_argument('--local_rank')")},
        failing=("task.script=fail.py", *TORCHRUN, "task.entry=launch"),
        remedy="task.entry=torchrun task.local_rank_arg=--local_rank",
        cured=("task.entry=torchrun", "task.local_rank_arg=--local_rank"),
    ),
    Cure(
        "argument_unknown",
        {"fail.py": ARGPARSE.format("parser.add_argument('--fail-rank')")},
        failing=("task.script=fail.py", PLAIN_ENTRY, "task.args.fail_rank=1"),
        remedy="its name is task.args.fail-rank, not task.args.fail_rank",
        cured=("~task.args.fail_rank", "task.args.fail-rank=1"),
    ),
    Cure(
        "module_missing",
        {"src/package/__init__.py": "", "src/package/train.py": "print('on')\n"},
        failing=("task.module=package.train", PLAIN_ENTRY),
        remedy="task.env.PYTHONPATH=src",
        cured=("task.env.PYTHONPATH=src",),
    ),
)


def printed_cure(done: Result) -> str:
    """What is said to do, its line breaks left out."""
    return " ".join(done.err.partition("cure: ")[2].split())


@pytest.mark.parametrize("cure", [pytest.param(cure, id=cure.cause) for cure in CURES])
def test_a_cure_cures(launcher: Launcher, cure: Cure) -> None:
    """On this machine alone, as it is printed."""
    for name, text in cure.files.items():
        path = launcher.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    words = {word.partition("=")[0]: word for word in ("cluster=local", *cure.failing)}

    failed = launcher(*words.values())
    assert failed.code == 1, failed
    assert failed.result["diagnosis"]["cause"] == cure.cause, failed
    assert cure.remedy in printed_cure(failed), failed

    for word in cure.cured:
        key = word.partition("=")[0]
        words.pop(key.lstrip("~"), None)
        words |= {} if key.startswith("~") else {key: word}
    cured = launcher(*words.values())
    assert cured.code == 0, cured


def test_a_start_that_failed_has_a_cure(lab: Lab, on_lab: Launcher) -> None:
    """A work folder elsewhere, where the usual one may not be written to."""
    lab["node1"].sh("mkdir -p ~/.runner/runs && chmod a-w ~/.runner/runs")
    words = (*ON_ONE, *on_lab.rank_overrides("print=up"))
    failed = on_lab(*words)
    done = on_lab(*words, "cluster.workdir=~/elsewhere")
    lab["node1"].sh("chmod u+w ~/.runner/runs")
    assert failed.code == 3, failed
    assert failed.result["diagnosis"]["cause"] == "start_not_permitted", failed
    assert "cluster.workdir" in printed_cure(failed), failed
    assert done.code == 0, done
