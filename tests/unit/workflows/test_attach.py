"""The question of an attached terminal."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from runner.workflows.attach import DETACH_QUESTION, DetachPrompt


@pytest.mark.parametrize(
    ("folder", "origin"), [("", ""), ("/home/ada/other", "It was launched from /home/ada/other. ")]
)
def test_who_may_stop_a_run_of_another_folder_is_told_so(
    folder: str, origin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C asks, and names it in the question."""
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(DetachPrompt, "_ask", lambda _: None)
    console = Mock()
    prompt = DetachPrompt(Mock(), Mock(), console, folder)
    assert not prompt(signal.SIGINT)
    console.message.assert_called_once_with(f"{origin}{DETACH_QUESTION}")
