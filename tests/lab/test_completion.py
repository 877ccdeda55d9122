"""Completion in real shells: what TAB makes of a line."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.golden.here import write
from tests.lab.lab import need
from tests.lab.launching import ROOT
from tests.lab.terminal import Terminal

BIN = Path(sys.executable).parent
ZSH = "autoload -Uz compinit && compinit -u -D\n"
LINES = {
    "a verb": ("runner stac", "stacks"),
    "a flag with its value": ("runner ps --cluster=mi", "--cluster=mine"),
    "a program": ("runner trai", "train.py"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a cluster; a home without settings of shells."""
    folder = tmp_path_factory.mktemp("project")
    write(folder, {"conf/cluster/mine.yaml": "nodes: {}\n", "home/.keep": "", "train.py": ""})
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


@pytest.mark.parametrize("shell", ["bash", pytest.param("zsh", marks=pytest.mark.all)])
def test_tab_completes_words(shell: str, folder: Path) -> None:
    """A word is on the line as if typed."""
    need("" if shutil.which(shell) else f"no {shell}")
    page = (ROOT / "docs" / "commands.md").read_text().splitlines()
    install = next(line for line in page if "runner --shell-completion bash" in line)
    rc = folder / f"{shell}.rc"
    rc.write_text(f"{ZSH if shell == 'zsh' else ''}{install.replace('bash', shell)}\nPS1='$ '\n")
    options = {"bash": ["--norc", "--noprofile", "-i"], "zsh": ["-f", "-i"]}
    argv = [shell, *options[shell]]
    with contextlib.closing(Terminal(argv, folder, environment(folder))) as terminal:
        terminal.type(f". ./{rc.name}; echo rea''dy\n")
        terminal.until(r"ready\r\n")
        for line, word in LINES.values():
            before = line.rpartition(" ")[0]
            assert f"\n<{before} {word}>" in tab(terminal, line)


def tab(terminal: Terminal, line: str) -> str:
    """Type a line and TAB, and then an `echo` of what the line has become; return the screen."""
    start = len(terminal.shown)
    terminal.type(f"{line}\t\x01echo '<\x05>'\n")
    # zsh takes back the space after the word when something else is typed.
    return terminal.until(r"\n<.*>\r\n", start=start).replace(" >", ">")


@pytest.mark.all
def test_fish_completes_words(folder: Path) -> None:
    """By its own command that says what TAB would offer."""
    need("" if shutil.which("fish") else "no fish")
    questions = "\n".join(f"echo '{case}:'; complete -C '{LINES[case][0]}'" for case in LINES)
    text = f"runner --shell-completion fish | source\n{questions}\n"
    words = ["fish", "--no-config", "-c", text]
    env = environment(folder)
    done = subprocess.run(words, env=env, cwd=folder, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    offered = dict(re.findall(r"^(.*):\n((?:.*[^:]\n)*)", done.stdout, re.MULTILINE))
    for case, (_, word) in LINES.items():
        assert word in offered[case].split(), case
