"""What a word of the command line may become, as the script of a shell asks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runner.cli import completion
from runner.cli.main import program
from tests.golden.here import write

CLUSTER = "defaults: [base]\ntransport: local\nnodes: {gpu7: {}}\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write(tmp_path, dict.fromkeys(("conf/cluster/hy.yaml", "more/cluster/new.yaml"), CLUSTER))
    write(tmp_path, dict.fromkeys(("runs/here/config.yaml", "runs/sweep/s.json"), "{}"))
    write(Path(os.environ["XDG_STATE_HOME"]), {"runner/runs/there/config.yaml": "{}"})
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("runner stac", "stacks"),
        ("runner ", "init check launch cluster= task= lost_s="),
        ("runner ps --cluster h", "hy"),
        ("runner --cluster=h", "hy"),
        ("runner ps --al", "--all"),
        ("runner -m cluster=h", "hy"),
        ("runner cluster=hy cluster.nodes.g", "cluster.nodes.gpu7."),
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
    line: str, found: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Verbs, flags in both forms, groups, keys, and runs on record anywhere; bash ends at `=`.

    Not so zsh, and bash where a user has changed COMP_WORDBREAKS; a program's words are files.
    """
    shell, _, typed = line.rpartition(": ")
    monkeypatch.setenv("COMP_LINE", typed)
    monkeypatch.setenv("COMP_WORDBREAKS", " " if shell else " =:")
    assert completion.complete(program, shell.partition(" ")[0] or "bash") == 0
    offered = capsys.readouterr().out.split()
    assert {*found.split()} <= {*offered}
    if not line.endswith(" "):
        assert len(offered) == len(found.split())
