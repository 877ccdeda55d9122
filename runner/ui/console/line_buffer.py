"""Lines out of pieces of output: torn ones, unfinished ones, and those that redraw themselves.

Pure: whoever feeds it says what time it is. Everything that costs time per line is done only
where a carriage return asks for it.
"""

from __future__ import annotations

from dataclasses import dataclass

SHOW_PARTIAL_AFTER_S = 1.0
"""After so long a line without its end is worth seeing."""


@dataclass
class _PartialLine:
    """A line whose end has not come: `text` is what of it waits, its newest form if it has some."""

    text: bytes
    since: float
    is_redrawn: bool = False
    is_continuation: bool = False
    """Its beginning was already handed out as a line of its own."""

    @property
    def latest(self) -> bytes:
        return self.text.rstrip(b"\r")


class LineAssembler:
    """The unfinished lines of many sources, each by a key of the caller's."""

    def __init__(self, max_line_bytes: int) -> None:
        self._max_line_bytes = max_line_bytes
        self._partial: dict[tuple[str, int], _PartialLine] = {}

    def feed(self, key: tuple[str, int], data: bytes, now: float) -> bytes | None:
        """Take the next piece; return the lines it ends, joined by newlines, or None."""
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
        """Hand out what has waited long for its end; the rest will be a line of its own."""
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
        """Count no waiting before `until`: what is missing may have been there, but not fetched."""
        for partial in self._partial.values():
            partial.since = max(partial.since, until)

    def pending(self, now: float) -> list[tuple[tuple[str, int], bytes]]:
        """Return the newest form of every line that redraws itself or has waited long."""
        return [
            (key, partial.latest)
            for key, partial in self._partial.items()
            if (partial.is_redrawn or now - partial.since >= SHOW_PARTIAL_AFTER_S)
            and partial.latest.strip()
        ]

    def pop_all(self) -> list[tuple[tuple[str, int], bytes]]:
        """Hand out everything that will have no end; a bar that wiped itself away is nothing."""
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
    """Drop the first of `lines` if it is but the end of one that was handed out."""
    lines = _latest_forms(lines) if b"\r" in lines else lines
    first, newline, others = lines.partition(b"\n")
    if first:
        return lines
    return others if newline else None
