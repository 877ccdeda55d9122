"""The word after `top`: a cluster, or a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.cli.main import main


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("latest", "error: --run: no run was launched from this folder"),
        ("nosuch", "error: cluster=nosuch: Could not find 'cluster/nosuch'"),
    ],
)
def test_a_word_is_a_cluster_or_a_run(
    word: str,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`latest` is a run, also where none was launched."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert main(["top", word, "--once"]) == 2
    assert capsys.readouterr().err.startswith(told)
