"""Completion in real shells: what TAB makes of a line, and that python's own stays as it was."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.lab import need
from tests.lab.launching import ROOT
from tests.lab.terminal import Terminal

BIN = Path(sys.executable).parent
OWN = {
    "bash": "_mine() { COMPREPLY=(own-completion); }; complete -F _mine python\n",
    "zsh": "autoload -Uz compinit && compinit -u -D\n"
    "_mine() { compadd own-completion }; compdef _mine python\n",
    "fish": "complete -c python -a own-completion\n",
}
LINES = {
    "the script": ("runner stac", "stacks"),
    "the cluster of a verb": ("python -m runner ps --cluster mi", "mine"),
    "a key": ("python -m runner cluster=mine cluster.nodes.gp", "cluster.nodes.gpu7."),
    "a run to repeat": ("python -m runner rerun=11", "rerun=1122-0815-train-abcd"),
    "a mistake before it": ("python -m runner cluster=nope task=tr", "task=training"),
    "python itself": ("python own", "own-completion"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a cluster, a task and a run on record; a home without settings of shells."""
    folder = tmp_path_factory.mktemp("project")
    for file, text in {
        "conf/cluster/mine.yaml": "defaults: [base]\nnodes:\n  gpu7: {}\n",
        "conf/task/training.yaml": "defaults: [base]\nscript: train.py\n",
        "runs/1122-0815-train-abcd/contact.json": "{}",
        "home/.keep": "",
    }.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text)
    return folder


def environment(folder: Path) -> dict[str, str]:
    home = str(folder / "home")
    return {
        "HOME": home,
        "ZDOTDIR": home,
        "XDG_CONFIG_HOME": home,
        "PATH": f"{BIN}:/usr/local/bin:/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
        "TERM": "dumb",
        "LANG": "C.UTF-8",
    }


def install_line(shell: str, folder: Path) -> str:
    """The line that `--shell-completion` prints for a shell."""
    words = [sys.executable, "-m", "runner", "--shell-completion"]
    env = environment(folder)
    done = subprocess.run(words, env=env, cwd=folder, capture_output=True, text=True, check=True)
    return next(
        line.split(maxsplit=1)[1] for line in done.stdout.splitlines() if line.split()[0] == shell
    )


def require(shell: str) -> None:
    need("" if shutil.which(shell) else f"no {shell}")


@pytest.mark.parametrize("shell", ["bash", pytest.param("zsh", marks=pytest.mark.all)])
def test_tab_completes_words(shell: str, folder: Path) -> None:
    """A word is on the line as if typed, python's own completion stays, no module is run.

    Where somebody has a runner.py, `python -m runner` would start that; the script is completed.
    """
    require(shell)
    rc = folder / f"{shell}.rc"
    rc.write_text(f"{OWN[shell]}{install_line(shell, folder)}\nPS1='$ '\n")
    (folder / "own").mkdir(exist_ok=True)
    (folder / "own" / "runner.py").write_text("open('ran', 'w')")
    options = {"bash": ["--norc", "--noprofile", "-i"], "zsh": ["-f", "-i"]}
    argv = [shell, *options[shell]]
    with contextlib.closing(Terminal(argv, folder, environment(folder))) as terminal:
        terminal.type(f". ./{rc.name}; echo rea''dy\n")
        terminal.until(r"ready\r\n")
        for line, word in LINES.values():
            before = line.rpartition(" ")[0]
            assert f"\n<{before} {word}>" in tab(terminal, line)
        terminal.type("cd own; echo the''re\n")
        terminal.until(r"there\r\n")
        tab(terminal, "python -m runner stac")
        assert "\n<runner stacks>" in tab(terminal, "runner stac")
    assert not (folder / "own" / "ran").exists()


def tab(terminal: Terminal, line: str) -> str:
    """Type a line and TAB, and then an `echo` of what the line has become; return the screen."""
    start = len(terminal.shown)
    terminal.type(f"{line}\t\x01echo '<\x05>'\n")
    # zsh takes back the space after the word when something else is typed.
    return terminal.until(r"\n<.*>\r\n", start=start).replace(" >", ">")


@pytest.mark.all
def test_fish_completes_words(folder: Path) -> None:
    """By its own command that says what TAB would offer."""
    require("fish")
    questions = "\n".join(f"echo '{case}:'; complete -C '{LINES[case][0]}'" for case in LINES)
    text = f"{OWN['fish']}{install_line('fish', folder)}\n{questions}\n"
    words = ["fish", "--no-config", "-c", text]
    env = environment(folder)
    done = subprocess.run(words, env=env, cwd=folder, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    offered = dict(re.findall(r"^(.*):\n((?:.*[^:]\n)*)", done.stdout, re.MULTILINE))
    for case, (_, word) in LINES.items():
        assert word in offered[case].split(), case
