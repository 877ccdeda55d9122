"""The question of an attached terminal."""

from __future__ import annotations

import queue
import signal
import time
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from runner.core.model.run_info import RunInfo
from runner.workflows import attach
from runner.workflows.attach import ANSWER_TIMEOUT_S, DETACH_QUESTION, DetachPrompt
from tests.lab.waiting import PATIENCE

pytestmark = pytest.mark.promise(10)


class Terminal:
    """Standard input, and the clock: a line is typed after so many seconds, or none ever is."""

    def __init__(self, *lines: tuple[float, str]) -> None:
        self.now = 100.0
        self._lines = [*lines]

    def clock(self) -> float:
        return self.now

    def isatty(self) -> bool:
        return True

    def is_typed(self, timeout_s: float) -> bool:
        waited_s = min([timeout_s, *(after_s for after_s, _ in self._lines[:1])])
        self.now += waited_s
        return waited_s < timeout_s

    def readline(self) -> str:
        return self._lines.pop(0)[1]


class Asked:
    """A prompt on a terminal where Ctrl-C was typed, and what became of it."""

    def __init__(self, terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sys.stdin", terminal)
        monkeypatch.setattr(attach, "_is_typed", terminal.is_typed)
        inbox: Any = queue.SimpleQueue()
        self.messages: list[str] = []
        self.phase = Mock()
        console: Any = SimpleNamespace(message=self.messages.append, phase=self.phase)
        run = RunInfo(
            "0314-1592-digits-65a3",
            task="digits",
            launched_by="eve@far",
            launched_at=time.time() - 7200.5,
        )
        self.prompt = DetachPrompt(Mock(), inbox, console, run, terminal.clock)
        assert not self.prompt(signal.SIGINT)
        _, frame = inbox.get(timeout=10 * PATIENCE)
        self.command = frame.data["command"]


def test_without_an_answer_it_detaches(monkeypatch: pytest.MonkeyPatch) -> None:
    """After 30 s, said and counted down; another word is asked again, and gives no more time."""
    terminal = Terminal((12, "what\n"))
    asked = Asked(terminal, monkeypatch)

    assert (asked.command, terminal.now) == ("detach", 100.0 + ANSWER_TIMEOUT_S)
    assert asked.messages[1] == DETACH_QUESTION
    assert asked.phase.call_args.args == ("d or s? detaching", -ANSWER_TIMEOUT_S)
    assert asked.messages[2:] == [f"what is neither d nor s. {DETACH_QUESTION}"]
