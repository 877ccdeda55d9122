"""What is gone: one line names it and what to use instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.cli.main import main
from runner.config import gone

LINES = {
    "draw latest": "error: draw: is gone; use compare\n",
    "report --paint red": "error: --paint: is gone; use report\n",
    "cluster=local --paint red": "error: --paint: is gone; use task.args\n",
    "cluster=local task=single task.colour=red": "error: task.colour: is gone; use task.args\n",
    "cluster=local task=gone": "error: task=gone: is gone; use task=single\n",
    "cluster=old task=single": "error: conf/cluster/old.yaml:2: cluster.colour: is gone; use env\n",
}


@pytest.mark.parametrize("words", LINES)
def test_one_line_says_what_to_use_instead(
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Verbs, flags, keys typed and in a file, and options of a group; the exit code is 2."""
    monkeypatch.setitem(gone.VERBS, "draw", "use compare")
    monkeypatch.setitem(gone.FLAGS, "report --paint", "use report")
    monkeypatch.setitem(gone.FLAGS, "--paint", "use task.args")
    monkeypatch.setitem(gone.KEYS, "task.colour", "use task.args")
    monkeypatch.setitem(gone.KEYS, "task=gone", "use task=single")
    monkeypatch.setitem(gone.KEYS, "cluster.colour", "use env")
    file = tmp_path / "conf/cluster/old.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("defaults: [base]\ncolour: red\nnodes: {gpu1: {}}\n")
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 2
    assert capsys.readouterr().err == LINES[words]
