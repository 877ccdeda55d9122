"""A new user's first hour: what is set up starts, and what fails says what to do."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from typing import TYPE_CHECKING

import pytest

from tests.lab.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.lab.lab import Lab
    from tests.lab.launching import Launcher


def test_setup_brings_the_python(lab: Lab, on_lab: Launcher) -> None:
    """`source …/activate` and `python: python` is enough, for the agent as for the task."""
    python = f'#!/bin/sh\\nexec {sys.executable} "$@"\\n'
    for name in ("node1", "node2"):
        lab[name].sh(
            f"mkdir -p ~/env && printf '{python}' > ~/env/env-python && chmod +x ~/env/env-python "
            "&& echo 'PATH=~/env:$PATH' > ~/env/activate"
        )
    words = ("cluster=lab", "cluster.python=env-python")
    setup = "cluster.setup=['source ~/env/activate']"
    ranks = on_lab.rank_overrides("print=up")

    without = on_lab(*words, *ranks)
    done = on_lab(*words, setup, *ranks)
    elsewhere = on_lab("logs", "--run", done.folder.name)

    assert (without.code, "there is no env-python on its PATH" in without.err) == (3, True), without
    assert (done.code, done.out.count("] up")) == (0, 2), done
    assert (elsewhere.code, elsewhere.out.count("up")) == (0, 2), elsewhere


@pytest.mark.promise(8)
def test_a_start_that_failed_names_what_there_is(lab: Lab, on_lab: Launcher) -> None:
    """No files of ranks that never ran, nothing to pull, and a cure."""
    ranks = on_lab.rank_overrides("print=up")
    lab["node2"].sh("mkdir -p ~/.runner/runs && touch ~/.runner/runs/no-room")

    done = on_lab("cluster=lab", "run_id=no-room", "task.outputs=[out/**]", *ranks)
    lab["node2"].sh("rm ~/.runner/runs/no-room")

    assert done.code == 3, done
    assert "first failure: node2: could not start: " in done.err
    assert "cure: " in done.err
    assert "record: runs/no-room" in done.err
    for wrong in ("the ranks' working folder", "pull", "logs:"):
        assert wrong not in done.err


def typed_into(launcher: Launcher, argv: Sequence[str], *answers: str) -> str:
    """Return what an 80x24 terminal shows of a command with these answers, typed ahead."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    os.write(ours, "".join(f"{answer}\n" for answer in answers).encode())
    process = subprocess.Popen(
        argv,
        cwd=launcher.folder,
        env={**launcher.env, "TERM": "xterm"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    shown = b""
    try:
        while data := os.read(ours, 4096):
            shown += data
    except OSError:  # nobody has the terminal open any more
        pass
    finally:
        os.close(ours)
    assert process.wait(30 * PATIENCE) == 0, shown.decode()
    return shown.decode().replace("\r\n", "\n")


@pytest.mark.all
def test_a_rank_can_be_debugged(on_lab: Launcher) -> None:
    """The cure of a breakpoint gives its debugger a terminal."""
    (on_lab.folder / "bp.py").write_text("x = 41\nbreakpoint()\nprint('x is', x)\n")
    words = ("cluster=local", "cluster.nproc_per_node=1", "task.script=bp.py")

    failed = on_lab(*words)
    printed = on_lab(*words, "dry_run=true")
    shown = typed_into(on_lab, ["sh", "-c", printed.out], "x = x + 1", "c")

    cure = " ".join(failed.err.partition("cure: ")[2].split())
    assert "with cluster=local cluster.nproc_per_node=1 dry_run=true the launch prints" in cure
    assert "paste that into a terminal" in cure
    assert "(Pdb)" in shown, shown
    assert "x is 42" in shown, shown
