"""Line assembly from pieces of output, with unfinished lines and those that redraw themselves.

Pure: the caller passes the time. Work per line is done only where there are carriage returns.
"""

from __future__ import annotations

from dataclasses import dataclass

SHOW_PARTIAL_AFTER_S = 1.0  # time after which an unfinished line is shown


@dataclass
class _PartialLine:
    """An unfinished line: `text` is its pending part, or its newest form if it redraws itself."""

    text: bytes
    since: float
    is_redrawn: bool = False
    had_other_forms: bool = False  # not just the first half of a carriage return and newline
    is_continuation: bool = False  # its beginning was already returned as a line

    @property
    def latest(self) -> bytes:
        return self.text.rstrip(b"\r")


class LineAssembler:
    """The unfinished lines of many sources, by a key of the caller's."""

    def __init__(self, max_line_bytes: int) -> None:
        self._max_line_bytes = max_line_bytes
        self._partial: dict[tuple[str, int], _PartialLine] = {}

    def feed(self, key: tuple[str, int], data: bytes, now: float) -> bytes | None:
        """Add a piece; return the lines that it completes, joined by newlines, or None.

        A line that redrew itself begins with a carriage return, the only one in what is returned.
        """
        partial = self._partial.pop(key, None)
        if partial:
            data = b"\r" * partial.had_other_forms + partial.text + data
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        lines, newline, rest = data.rpartition(b"\n")
        complete: bytes | None = None
        if newline:
            complete = lines
            if b"\r" in lines:
                complete = b"\n".join([_completed(line) for line in lines.split(b"\n")])
            if partial and partial.is_continuation and complete[:1] in (b"", b"\n"):
                complete = complete[1:] if complete else None  # the end of a line returned before
            partial = None
        if rest:
            piece = self._store_partial(key, rest, partial or _PartialLine(b"", now), now)
            if piece is not None:
                complete = piece if complete is None else complete + b"\n" + piece
        elif partial:
            self._partial[key] = partial
        return complete

    def pop_overdue(self, now: float) -> list[tuple[tuple[str, int], bytes]]:
        """Return the lines unfinished for long; their rest becomes a line of its own."""
        lines = []
        for key, partial in self._partial.items():
            is_overdue = now - partial.since >= SHOW_PARTIAL_AFTER_S
            if is_overdue and partial.text and not partial.is_redrawn:
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
        partials, self._partial = self._partial, {}
        return [
            (key, b"\r" * each.had_other_forms + each.latest)
            for key, each in partials.items()
            if (each.latest.strip() if each.is_redrawn else each.latest)
        ]

    def _store_partial(
        self, key: tuple[str, int], rest: bytes, partial: _PartialLine, now: float
    ) -> bytes | None:
        """Keep an unfinished line; return it instead if it has become too long."""
        if not partial.text:
            partial.since = now
        if b"\r" in rest:
            partial.is_redrawn = True
            latest = _latest_form(rest)
            partial.had_other_forms |= latest != rest.rstrip(b"\r")
            rest = latest + (b"\r" if rest.endswith(b"\r") else b"")
        partial.text = rest
        self._partial[key] = partial
        if len(rest) <= self._max_line_bytes:
            return None
        partial.text, partial.is_continuation = b"", True
        return rest


def _completed(line: bytes) -> bytes:
    latest = _latest_form(line)
    return b"\r" + latest if latest != line.rstrip(b"\r") else latest


def _latest_form(line: bytes) -> bytes:
    return line.rstrip(b"\r").rpartition(b"\r")[2]
