"""Observer of an attempt: where the monitor reports to, the record and the console."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from runner.core.protocol.events import Event


class Phase(Protocol):
    """Shows what the attempt is doing now."""

    def __call__(self, text: str, elapsed_s: float = 0.0) -> None:
        """Show the phase `text`, which began `elapsed_s` ago."""


@dataclass(frozen=True)
class RunObserver:
    """What the record and the console take from the monitor of an attempt."""

    record: Callable[[Event], None]
    log: Callable[[str, str, str, int, bytes], None]
    message: Callable[[str], None]
    phase: Phase
    node_status: Callable[[str, str], None]
    console_full: Callable[[], bool]
    mute: Callable[[], None]
