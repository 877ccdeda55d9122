"""Programs of every style of arguments, and what they read of YAML, the words typed and a sweep."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.golden.conftest import Replay
from tests.golden.here import Here
from tests.lab.waiting import PATIENCE


@pytest.mark.promise(14)
def test_a_program_reads_what_was_written(here: Here, replay: Replay) -> None:
    """In the task's file, on the command line, after `--`, and in each run of a sweep."""

    def read(words: list[str]) -> str:
        said = here(*words)
        assert (said.code, len(said.runs)) == (0, 2), said
        programs = [
            subprocess.run(
                [sys.executable, run.spec.task.target, *run.spec.task.words],
                cwd=here.folder,
                capture_output=True,
                text=True,
                check=True,
                timeout=60 * PATIENCE,
            )
            for run in said.runs
        ]
        return "".join(done.stdout for done in programs)

    replay("argument-styles.txt", read)
