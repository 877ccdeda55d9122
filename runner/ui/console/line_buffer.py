"""Line assembly from pieces of output, with unfinished lines and those that redraw themselves.

Pure: the caller passes the time. Work per line is done only where there are carriage returns.
"""

from __future__ import annotations

from dataclasses import dataclass

SHOW_PARTIAL_AFTER_S = 1.0
"""Time after which an unfinished line is shown."""


@dataclass
class _PartialLine:
    """An unfinished line: `text` is its pending part, or its newest form if it redraws itself."""

    text: bytes
    since: float
    is_redrawn: bool = False
    is_continuation: bool = False
    """Its beginning was already returned as a line."""

    @property
    def latest(self) -> bytes:
        return self.text.rstrip(b"\r")


class LineAssembler:
    """The unfinished lines of many sources, by a key of the caller's."""

    def __init__(self, max_line_bytes: int) -> None:
        self._max_line_bytes = max_line_bytes
        self._partial: dict[tuple[str, int], _PartialLine] = {}

    def feed(self, key: tuple[str, int], data: bytes, now: float) -> bytes | None:
        """Add a piece; return the lines that it completes, joined by newlines, or None."""
        partial = self._partial.pop(key, None)
        if partial:
            data = partial.text + data
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        lines, newline, rest = data.rpartition(b"\n")
        if newline:
            complete: bytes | None = _latest_forms(lines) if b"\r" in lines else lines
            if partial and partial.is_continuation:
                complete = _drop_empty_first(lines)
            partial = None
        else:
            complete = None
        if rest:
            complete = self._store_partial(
                key, rest, partial or _PartialLine(b"", now), now, complete
            )
        elif partial:
            self._partial[key] = partial
        return complete

    def pop_overdue(self, now: float) -> list[tuple[tuple[str, int], bytes]]:
        """Return the lines unfinished for long; their rest becomes a line of its own."""
        lines = []
        for key, partial in self._partial.items():
            if (
                partial.text
                and not partial.is_redrawn
                and now - partial.since >= SHOW_PARTIAL_AFTER_S
            ):
                lines.append((key, partial.text))
                partial.text, partial.is_continuation = b"", True
        return lines

    def defer(self, until: float) -> None:
        """Count waiting from `until` on: the rest may have been written, but not fetched."""
        for partial in self._partial.values():
            partial.since = max(partial.since, until)

    def pending(self, now: float) -> list[tuple[tuple[str, int], bytes]]:
        """Return the newest form of each line that redraws itself or is unfinished for long."""
        return [
            (key, partial.latest)
            for key, partial in self._partial.items()
            if (partial.is_redrawn or now - partial.since >= SHOW_PARTIAL_AFTER_S)
            and partial.latest.strip()
        ]

    def pop_all(self) -> list[tuple[tuple[str, int], bytes]]:
        """Return all unfinished lines; a progress bar that erased itself is none."""
        remaining = [
            (key, partial.latest)
            for key, partial in self._partial.items()
            if (partial.latest.strip() if partial.is_redrawn else partial.latest)
        ]
        self._partial.clear()
        return remaining

    def _store_partial(
        self,
        key: tuple[str, int],
        rest: bytes,
        partial: _PartialLine,
        now: float,
        complete: bytes | None,
    ) -> bytes | None:
        if not partial.text:
            partial.since = now
        if b"\r" in rest:
            partial.is_redrawn = True
            rest = _latest_form(rest) + (b"\r" if rest.endswith(b"\r") else b"")
        partial.text = rest
        self._partial[key] = partial
        if len(rest) <= self._max_line_bytes:
            return complete
        partial.text, partial.is_continuation = b"", True
        return rest if complete is None else complete + b"\n" + rest


def _latest_form(line: bytes) -> bytes:
    return line.rstrip(b"\r").rpartition(b"\r")[2]


def _latest_forms(lines: bytes) -> bytes:
    return b"\n".join(
        [_latest_form(line) if b"\r" in line else line for line in lines.split(b"\n")]
    )


def _drop_empty_first(lines: bytes) -> bytes | None:
    """Drop the first line if it is the empty end of one returned before."""
    lines = _latest_forms(lines) if b"\r" in lines else lines
    first, newline, others = lines.partition(b"\n")
    if first:
        return lines
    return others if newline else None
