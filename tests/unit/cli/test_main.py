"""The words of a verb: flags, overrides as a launch takes them, and one subject."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from runner.cli.completion.query import candidates
from runner.cli.main import main
from runner.cli.parser import VerbParser, fit_help, help_text
from runner.cli.verb import load_verb
from runner.config.overrides import is_override

CLUSTER = """\
defaults: [base]
transport: local
nodes: {gpu-01: {}, my-box: {}}
env: {A: "1"}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder whose nodes have hyphens."""
    for name, text in {
        "cluster/hy.yaml": CLUSTER,
        "task/mine.yaml": "defaults: [base]\nscript: train.py\nargs: {lr: 0.1, steps: 3}\n",
    }.items():
        file = tmp_path / "conf" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def values(name: str, *words: str) -> dict[str, Any]:
    """What a verb's function is given for these words."""
    return VerbParser(load_verb(name)).values(words)


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(words) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "current", "found"),
    [
        (["--cluster"], "h", ["hy"]),
        ([], "--cluster=h", ["--cluster=hy"]),
        (["kill", "--cluster"], "h", ["hy"]),
        (["status"], "--al", ["--all"]),
        (["--config-dir=more"], "cluster=ne", ["cluster=new"]),
        (["ps", "--config-dir", "more", "--cluster"], "ne", ["new"]),
    ],
)
def test_words_are_completed_as_they_are_read(
    folder: Path, words: list[str], current: str, found: list[str]
) -> None:
    """Flags in both forms, of launches too; other names of verbs."""
    (folder / "more" / "cluster").mkdir(parents=True)
    (folder / "more" / "cluster" / "new.yaml").write_text(CLUSTER)
    assert candidates(words, current) == found


def test_runs_on_record_anywhere_are_completed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the index, too; a sweep is no run."""
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    for file in (
        "runs/here/contact.json",
        "state/runner/runs/there/contact.json",
        "runs/sweep/s.json",
    ):
        (folder / file).parent.mkdir(parents=True)
        (folder / file).write_text("{}")
    assert set(candidates(["logs", "--run"], "")) == {"here", "there"}
    assert candidates(["top"], "th") == ["there"]
    assert candidates(["top"], "hy")[0] == "hy"


def test_a_key_can_be_taken_out(capsys: pytest.CaptureFixture[str]) -> None:
    """As the first word, in a verb, and for a whole part of the schema: its default holds."""
    words = ("cluster=hy", "task=mine", "dry_run=offline")
    assert " --steps 3\n" in printed(capsys, "~task.args.lr", *words)
    assert printed(capsys, "config", "task.args", "~task.args.lr", *words) == "steps: 3\n"
    assert "train.py\n" in printed(capsys, "~task.args", *words)
    assert "train.py" in printed(capsys, "~cluster.env", "~watch", "~run_dir", *words)


def test_an_override_is_one_in_verbs_as_in_launches() -> None:
    """Anything with a key and `=`, and anything that begins with ~ or +; a line of shell is not."""
    for word in ("a=1", "cluster.nodes.my-box.host=10.0.0.5", "~cluster", "++a=b c", "task@x=y"):
        assert is_override(word)
        assert values("config", word, "--set", "b=2")["set_"] == ["b=2", word]
    for word in ("latest", "train.py", "echo a=b", "-x=1", "--set=a=1", "~user/x"):
        assert not is_override(word)
    given = values("exec", "A=1 env", "cluster.setup=[a b]")
    assert (given["set_"], given["command"]) == (["cluster.setup=[a b]"], "A=1 env")


def test_a_path_below_a_home_folder_needs_no_quotes(capsys: pytest.CaptureFixture[str]) -> None:
    """As the value of a key; `~` alone still takes a key out."""
    words = ("cluster=hy", "cluster.env.DATA=~/data", "+cluster.env.HERS=~ada", "~cluster.env.A")
    assert printed(capsys, "config", "cluster.env", *words) == "DATA: ~/data\nHERS: ~ada\n"


@pytest.mark.parametrize(
    "words",
    [
        ("config", "--config-dir", "~nobody-here/x"),
        ("cluster=local", "rerun=~nobody-here/x"),
        ("init", "--hostfile", "~nobody-here/x"),
        ("init", "--key", "~nobody-here/x"),
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
    runner = [sys.executable, "-m", "runner"]
    with Path("/dev/full").open("w") as full:
        argv = [*runner, "cluster=hy", "task=mine", "dry_run=offline"]
        done = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        silent = subprocess.run([*runner, "clean", "--wat"], stderr=full, check=False)
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
    monkeypatch.setattr("runner.workflows.launch.render_dry_run", fail)
    monkeypatch.setattr("runner.ui.reports.tables.render_pruned", fail)
    for words in (["cluster=hy", "task=mine", "dry_run=offline"], ["clean", "--local"]):
        assert main(words) == 70
        error = capsys.readouterr().err
        message, path = error.rstrip().split("; its traceback is in ")
        assert message == "error: a fault of the runner itself (KeyError: 'a bug')"
        assert Path(path).read_text().count("Traceback") == 1
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(KeyError):
        main(["clean", "--local"])


def test_help_is_printed_beside_yaml_that_cannot_be_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the shipped files, with where the fault is."""
    (tmp_path / "conf").mkdir(exist_ok=True)
    (tmp_path / "conf" / "runner.yaml").write_text("lost_s: [1")
    monkeypatch.chdir(tmp_path)
    assert main(["--help"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("Starts a PyTorch job on every machine of a cluster")
    assert said.err.startswith("error: conf/runner.yaml:1:")


def test_help_fits_the_screen() -> None:
    """An explanation goes on below its beginning."""
    shown = fit_help(help_text(load_verb("logs")), 60)
    assert max(map(len, shown.splitlines())) <= 60
    gap = " " * len("  --set=SET                ")
    words = f"KEY=VALUE as in a launch, such as\n{gap}task=train; repeatable\n"
    assert f"  --set=SET                {words}" in shown


def test_commands_in_messages_about_words_run_as_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An unknown flag, a word too many or too few: each verb has the same cure for them."""
    printed_commands: set[str] = set()
    for line in ("logs --wat", "stop a b", "explain", "xyzzy", "--wat", "lr=1 check", "stop", "+"):
        assert main(line.split()) == 2
        err = capsys.readouterr().err
        commands = re.findall(r"`runner ([^`]+)`|: runner (.+)$", err, re.MULTILINE)
        assert commands, err
        printed_commands.update(quoted or alone for quoted, alone in commands)
    for command in printed_commands - {"check", "ps"}:  # which need a host
        assert main(shlex.split(command)) == 0, command


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
    other = "note: this runs resnet18, which comes with the runner; task.script=train.py runs "
    for words, said in {
        ("task.script=trian.py",): near.format("trian.py"),
        ("task.script=train.py",): "",
        (): f"{other}train.py\n",
    }.items():
        main(["cluster=local", "dry_run=offline", *words])
        notes = [line for line in capsys.readouterr().err.splitlines(True) if "note: " in line]
        assert "".join(notes) == said
