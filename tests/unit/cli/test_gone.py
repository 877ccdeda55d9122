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
}


@pytest.mark.parametrize("words", LINES)
def test_one_line_says_what_to_use_instead(
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Verbs and flags; the exit code is 2."""
    monkeypatch.setitem(gone.VERBS, "draw", "use compare")
    monkeypatch.setitem(gone.FLAGS, "report --paint", "use report")
    monkeypatch.setitem(gone.FLAGS, "--paint", "use task.args")
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 2
    assert capsys.readouterr().err == LINES[words]
