"""The status area: phase, elapsed time, state of each node, and unfinished lines.

Other threads set its content; the writer's thread renders it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from runner.ui.console.dedup import Source

if TYPE_CHECKING:
    from runner.ui.console.status_render import Row

SHOW_AFTER_S = 1.0
"""A run shorter than this needs no area."""

SCREEN_SHARE = 3
"""The area takes at most one in this many rows of the terminal."""


class StatusArea:
    """The content of the area, for any number of threads."""

    def __init__(
        self, nodes: Sequence[str], *, colour: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock, self._colour = clock, colour
        self._lock = threading.Lock()
        self._states = dict.fromkeys(nodes, "")
        self._phase, self._phase_began = "", clock()
        self._progress: list[tuple[Source, str]] = []
        self._is_shown = self._has_ended = False

    def phase(self, text: str, elapsed_s: float = 0.0) -> None:
        """Set the phase, and the seconds for which it has lasted."""
        text = _one_line(text)
        with self._lock:
            if text != self._phase:
                self._phase, self._phase_began = text, self._clock() - elapsed_s

    def node_status(self, node: str, text: str) -> None:
        """Set the state of a node; "" for one that does not take part."""
        with self._lock:
            self._states[node] = _one_line(text)

    def progress_lines(self, lines: list[tuple[Source, str]]) -> None:
        """Set the newest form of unfinished lines."""
        with self._lock:
            self._progress = sorted(lines, key=lambda line: line[0].rank)

    def end(self) -> None:
        """Hide the area from now on."""
        with self._lock:
            self._has_ended = True

    @property
    def has_ended(self) -> bool:
        """Whether the area was ended."""
        return self._has_ended

    def render(self, columns: int, rows: int) -> list[Row]:
        """Return the area's rows for a terminal of that size."""
        with self._lock:
            elapsed_s = self._clock() - self._phase_began
            self._is_shown = self._is_shown or bool(self._progress) or elapsed_s > SHOW_AFTER_S
            if self._has_ended or not self._is_shown or not (self._phase or self._progress):
                return []
            phase, progress = self._phase, list(self._progress)
            groups: dict[str, list[str]] = {}
            for node, state in self._states.items():
                if state:
                    groups.setdefault(state, []).append(node)
        from runner.ui.console import status_render

        states = [(nodes, state) for state, nodes in groups.items()]
        texts = status_render.compose_rows(
            phase, elapsed_s, states, progress, max(1, rows // SCREEN_SHARE)
        )
        return status_render.render_rows(texts, max(1, columns - 1), colour=self._colour)


def _one_line(text: str) -> str:
    return "".join(char for char in " ".join(text.split()) if char.isprintable())
