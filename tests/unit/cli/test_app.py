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
from runner.verbs.shared.selection import Selection
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


@pytest.mark.promise(14)
def test_a_program_just_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """With its arguments, on the cluster named before it."""
    words = ("cluster=hy", "dry_run=offline", "train.py", "--lr", "0.1", "--note", "a b")
    assert " train.py --lr 0.1 --note 'a b'\n" in printed(capsys, *words)


@pytest.mark.parametrize("settings", ["lost_s=3", "cluster.nodes.a.host=h", "+experiment=x"])
def test_keys_that_reach_hosts_are_taken(settings: str) -> None:
    """Also a choice of files that may hold anything; `deploy` takes its own besides."""
    Selection((settings, "cluster=x"), verb="ps", keys=()).refuse_ignored_words()
    Selection(("deploy.max_mb=3",), verb="deploy", keys=("deploy",)).refuse_ignored_words()


def test_an_override_is_one_in_verbs_as_in_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a word alone, or after `--set`; a line of shell is none."""
    for word in ("cluster.nodes.my-box.host=10.0.0.5", "~cluster", "++a=b c"):
        given = values(monkeypatch, "config", word, "--set", "b=2")
        assert given["selection"].settings == ("b=2", word)
    given = values(monkeypatch, "exec", "A=1 env", "cluster.setup=[a b]")
    assert (given["selection"].settings, given["command"]) == (("cluster.setup=[a b]",), "A=1 env")


def test_short_forms_are_those_of_other_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a value may begin with a dash."""
    given = values(monkeypatch, "logs", "-f", "-n", "5", "latest")
    assert (given["follow"], given["tail"], given["run"]) == (True, 5, "latest")
    assert values(monkeypatch, "stop", "r1", "-y")["yes"]
    assert values(monkeypatch, "ps", "-a")["all_"]
    given = values(monkeypatch, "compare", "a", "--run", "b", "--sort", "-loss")
    assert (given["run"], given["sort"]) == (("b", "a"), "-loss")
    given = values(monkeypatch, "exec", "--cluster", "hy", "--", "ls", "-l", "--", "x")
    assert (given["words"], given["selection"].settings) == (
        ["ls", "-l", "--", "x"],
        ("cluster=hy",),
    )


@pytest.mark.parametrize(
    "words",
    [
        ("config", "--config-dir", "~nobody-here/x"),
        ("cluster=local", "rerun=~nobody-here/x"),
        ("init", "--hostfile", "~nobody-here/x"),
    ],
)
def test_the_home_of_no_user_is_no_fault_of_ours(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    """It is a path that is not there."""
    assert main(words) == 2
    assert "~nobody-here/x" in capsys.readouterr().err


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
    """In a verb as in a dry run; its traceback is in a file."""

    def fail(*_: object, **__: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("runner.ui.reports.report.render_dry_run", fail)
    monkeypatch.setattr("runner.ui.reports.tables.render_origins", fail)
    for words in (["cluster=hy", "task=mine", "dry_run=offline"], ["explain", "run_id"]):
        assert main(words) == 70
        error = capsys.readouterr().err
        message, path = error.rstrip().split("; its traceback is in ")
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


def test_a_program_that_is_here_is_named(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Where another name is typed, or none: then a task of ours is run."""
    folder = tmp_path_factory.mktemp("no_conf")
    (folder / "train.py").touch()
    monkeypatch.chdir(folder)
    near = "note: {} is not here; did you mean train.py?\n"
    other = "note: this runs resnet18, which comes with the runner; `runner train.py` runs train.py"
    for words, said in {
        ("trian.py",): near.format("trian.py"),
        ("train.py",): "",
        (): f"{other}\n",
    }.items():
        main(["cluster=local", "dry_run=offline", *words])
        notes = [line for line in capsys.readouterr().err.splitlines(True) if "note: " in line]
        assert "".join(notes) == said


@pytest.mark.parametrize(
    ("typed", "printed"),
    [
        ("{python} -X dev -m runner", "{python} -X dev -m runner"),
        ("runner", "runner"),
        ("{python} -c 'from runner.cli.main import entry; entry()'", "runner"),
    ],
)
def test_printed_commands_begin_with_what_was_typed(
    typed: str, printed: str, tmp_path: Path
) -> None:
    """The script alone where PATH has it, else with its path; `runner` where nobody typed one."""
    places = {"python": sys.executable, "scripts": tmp_path / "my scripts"}
    script = tmp_path / "my scripts" / "runner"
    script.parent.mkdir()
    script.write_text(f"#!{sys.executable}\nfrom runner.cli.main import entry\nentry()\n")
    script.chmod(0o755)
    found = f":{script.parent}" if typed == "runner" else ""
    env = {"PATH": f"/usr/bin:/bin{found}", "PYTHONPATH": str(Path(runner.__file__).parents[1])}
    command = typed.format(**{name: shlex.quote(str(place)) for name, place in places.items()})
    done = subprocess.run(
        ["sh", "-c", f"{command} clean --wat"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done
    shown = printed.format(**places)
    begin = shlex.quote(shown) if shown.startswith(str(script.parent)) else shown
    assert done.stderr.splitlines()[-1] == f"    `{begin} clean --help` lists the flags"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("runner stac", "stacks"),
        ("runner ", "init check launch cluster= task= lost_s="),
        ("runner ps --cluster h", "hy"),
        ("runner --cluster=h", "hy"),
        ("runner ps --al", "--all"),
        ("runner -m cluster=h", "hy"),
        ("runner cluster=hy cluster.nodes.g", "cluster.nodes.gpu-01."),
        ("runner cluster=nope cluster.tra", "cluster.transport="),
        ("runner --config-dir=more cluster=ne", "new"),
        ("runner ps --config-dir more --cluster ne", "new"),
        ("runner ps h", "hy"),
        ("runner logs --run ", "here there"),
        ("runner logs th", "there"),
        ("runner top ", "hy local"),
        ("runner rerun=th", "there"),
        ("runner explain cluster.tr", "cluster.transport"),
        ("bash without breaks: runner --cluster=h", "--cluster=hy"),
        ("zsh: runner cluster=h", "cluster=hy"),
        ("zsh: runner ps --cluster=h", "--cluster=hy"),
        ("zsh: runner cluster=hy nope", ""),
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
