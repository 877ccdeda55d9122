"""The words of a command line: verbs, a program's file, keys, flags, and what completes them."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

import runner
from runner.cli import completion
from runner.cli.main import load_verb, main, program
from runner.cli.words import split_words
from runner.verbs import verb_names
from tests.golden.here import write

CLUSTER = """\
defaults: [base]
transport: local
nodes: {gpu-01: {}, my-box: {}}
env: {A: "1"}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder whose nodes have hyphens."""
    mine = "defaults: [base]\nscript: train.py\nargs: {lr: 0.1, steps: 3}\n"
    files = {"conf/cluster/hy.yaml": CLUSTER, "conf/task/mine.yaml": mine, "train.py": ""}
    write(tmp_path, files)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def values(monkeypatch: pytest.MonkeyPatch, *words: str) -> dict[str, Any]:
    """What a verb's function is given for these words."""
    given: dict[str, Any] = {}

    def note(**values: Any) -> int:
        given.update(values)
        return 0

    monkeypatch.setattr(load_verb(words[0]), "body", note)
    assert main(words) == 0
    return given


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(words) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("typed", "ours", "passed_on"),
    [
        ("train.py --lr 0.1", "launch task.script=train.py", "--lr 0.1"),
        ("train.py -- --lr 1", "launch task.script=train.py", "--lr 1"),
        ("train.py a -- b -h", "launch task.script=train.py", "a -- b -h"),
        ("cluster=hy -m sub/fit.py x=1", "launch cluster=hy -m task.script=sub/fit.py", "x=1"),
        ("--config-dir a.py /x/y.py", "launch --config-dir a.py task.script=/x/y.py", ""),
        ("a=1 -- train.py", "launch a=1", "train.py"),
        ("exec train.py", "exec train.py", ""),
        ("stop x -- y --", "stop x", "y --"),
        ("", "launch", ""),
        ("-m x=1", "launch -m x=1", ""),
    ],
)
def test_what_follows_a_program_is_the_programs(typed: str, ours: str, passed_on: str) -> None:
    """As after `--`, as it was typed; a verb and what comes before it are ours."""
    assert split_words(typed.split()) == (ours.split(), passed_on.split())


def test_words_of_a_verb_are_flags_settings_and_its_subject(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A setting alone, or after `--set`; a line of shell is none; a value may begin with a dash."""
    for word in ("cluster.nodes.my-box.host=10.0.0.5", "~cluster", "++a=b c"):
        given = values(monkeypatch, "config", word, "--set", "b=2")
        assert given["selection"].settings == ("b=2", word)
    given = values(monkeypatch, "exec", "A=1 env", "cluster.setup=[a b]")
    assert (given["selection"].settings, given["command"]) == (("cluster.setup=[a b]",), "A=1 env")
    given = values(monkeypatch, "exec", "--cluster", "hy", "--", "ls", "-l", "--", "x")
    assert (given["words"], given["selection"].settings) == (
        ["ls", "-l", "--", "x"],
        ("cluster=hy",),
    )
    given = values(monkeypatch, "logs", "-f", "-n", "5", "latest")
    assert (given["follow"], given["tail"], given["run"]) == (True, 5, "latest")
    given = values(monkeypatch, "compare", "a", "--run", "b", "--sort", "-loss")
    assert (given["run"], given["sort"]) == (("b", "a"), "-loss")


def test_output_that_cannot_be_written_is_one_line() -> None:
    """It has a code of its own; other errors keep theirs where nobody can be told."""
    ours = [sys.executable, "-m", "runner"]
    with Path("/dev/full").open("w") as full:
        argv = [*ours, "cluster=hy", "task=mine", "dry_run=offline"]
        done = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        silent = subprocess.run([*ours, "clean", "--wat"], stderr=full, check=False)
    lost = "error: cannot write to standard output: [Errno 28] No space left on device\n"
    assert (done.returncode, done.stderr) == (74, lost)
    assert silent.returncode == 2


def test_a_fault_of_our_own_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its traceback is in a file."""

    def fail(*_: object, **__: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("runner.ui.reports.tables.render_origins", fail)
    assert main(["explain", "run_id"]) == 70
    message, path = capsys.readouterr().err.rstrip().split("; its traceback is in ")
    assert message == "error: a fault of the runner itself (KeyError: 'a bug')"
    assert Path(path).read_text().count("Traceback") == 1


def test_help_has_lines_that_can_be_typed(capsys: pytest.CaptureFixture[str]) -> None:
    """Each example of a verb is parsed; a bad one would be an error of the command line."""
    for name in verb_names():
        verb = load_verb(name)
        for line in verb.examples:
            words, _ = split_words(shlex.split(line))
            assert words[0] == name
            verb.make_context(name, words[1:])
    assert capsys.readouterr().err == ""


def test_help_needs_no_yaml(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is there for who has made a mistake in it."""
    (folder / "conf" / "runner.yaml").write_text("lost_s: [1")
    for words in ("-h", "--help", "help", "launch --help", "cluster=hy --help"):
        assert printed(capsys, *words.split()).startswith("Usage: runner ")


def test_a_script_that_is_here_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """Where another name is typed that is near."""
    main(["cluster=local", "dry_run=offline", "trian.py"])
    assert "note: trian.py is not here; did you mean train.py?\n" in capsys.readouterr().err


@pytest.mark.parametrize("typed", ["{python} -X dev -m runner", "runner"])
def test_printed_commands_begin_with_what_was_typed(typed: str, tmp_path: Path) -> None:
    """As Python was started, or the script that PATH has."""
    script = tmp_path / "bin" / "runner"
    write(
        tmp_path,
        {"bin/runner": f"#!{sys.executable}\nfrom runner.cli.main import entry\nentry()\n"},
    )
    script.chmod(0o755)
    env = {
        "PATH": f"/usr/bin:/bin:{script.parent}",
        "PYTHONPATH": str(Path(runner.__file__).parents[1]),
    }
    command = typed.format(python=sys.executable)
    argv = [*command.split(), "clean", "--wat"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done
    assert done.stderr.splitlines()[-1] == f"    `{command} clean --help` lists the flags"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("runner stac", "stacks"),
        ("runner ", "init check launch cluster= task= lost_s="),
        ("runner ps --cluster h", "hy"),
        ("runner --cluster=h", "hy"),
        ("runner cluster=hy cluster.nodes.g", "cluster.nodes.gpu-01."),
        ("runner cluster=nope cluster.tra", "cluster.transport="),
        ("runner ps --config-dir more --cluster ne", "new"),
        ("runner ps h", "hy"),
        ("runner logs th", "there"),
        ("runner top ", "hy local"),
        ("runner rerun=th", "there"),
        ("bash without breaks: runner --cluster=h", "--cluster=hy"),
        ("zsh: runner ps --cluster=h", "--cluster=hy"),
    ],
)
def test_words_are_completed_as_they_are_read(
    line: str,
    found: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Verbs, flags in both forms, groups, keys, and runs on record anywhere; bash ends at `=`.

    Not so zsh, and bash where a user has changed COMP_WORDBREAKS; a program's words are files.
    """
    write(folder, {"more/cluster/new.yaml": CLUSTER})
    write(folder, dict.fromkeys(("runs/here/config.yaml", "runs/sweep/s.json"), "{}"))
    write(Path(os.environ["XDG_STATE_HOME"]), {"runner/runs/there/config.yaml": "{}"})
    shell, _, typed = line.rpartition(": ")
    monkeypatch.setenv("COMP_LINE", typed)
    monkeypatch.setenv("COMP_WORDBREAKS", " " if shell else " =:")
    assert completion.complete(program, shell.partition(" ")[0] or "bash") == 0
    offered = capsys.readouterr().out.split()
    assert {*found.split()} <= {*offered}
    if not line.endswith(" "):
        assert len(offered) == len(found.split())
