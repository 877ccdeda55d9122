"""Lines out of pieces of output: torn ones, unfinished ones, and those that redraw themselves.

Pure: whoever feeds it says what time it is. Everything that costs time per line is done only
where a carriage return asks for it.
"""

from __future__ import annotations

from dataclasses import dataclass

UNFINISHED_S = 1.0
"""After so long a line without its end is worth seeing."""


@dataclass
class _Torn:
    """A line whose end has not come: `text` is what of it waits, its newest form if it has some."""

    text: bytes
    since: float
    redrawn: bool = False
    begun: bool = False
    """Its beginning was already handed out as a line of its own."""

    @property
    def form(self) -> bytes:
        return self.text.rstrip(b"\r")


class Assembly:
    """The unfinished lines of many sources, each by a key of the caller's."""

    def __init__(self, long_line: int) -> None:
        self._long_line = long_line
        self._torn: dict[tuple[str, int], _Torn] = {}

    def feed(self, key: tuple[str, int], data: bytes, now: float) -> bytes | None:
        """Take the next piece; return the lines it ends, joined by newlines, or None."""
        torn = self._torn.pop(key, None)
        if torn:
            data = torn.text + data
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        lines, newline, rest = data.rpartition(b"\n")
        if newline:
            whole: bytes | None = _newest_forms(lines) if b"\r" in lines else lines
            if torn and torn.begun:
                whole = _without_empty_end(lines)
            torn = None
        else:
            whole = None
        if rest:
            whole = self._keep(key, rest, torn or _Torn(b"", now), now, whole)
        elif torn:
            self._torn[key] = torn
        return whole

    def overdue(self, now: float) -> list[tuple[tuple[str, int], bytes]]:
        """Hand out what has waited long for its end; the rest will be a line of its own."""
        found = []
        for key, torn in self._torn.items():
            if torn.text and not torn.redrawn and now - torn.since >= UNFINISHED_S:
                found.append((key, torn.text))
                torn.text, torn.begun = b"", True
        return found

    def defer(self, until: float) -> None:
        """Count no waiting before `until`: what is missing may have been there, but not fetched."""
        for torn in self._torn.values():
            torn.since = max(torn.since, until)

    def pending(self, now: float) -> list[tuple[tuple[str, int], bytes]]:
        """Return the newest form of every line that redraws itself or has waited long."""
        return [
            (key, torn.form)
            for key, torn in self._torn.items()
            if (torn.redrawn or now - torn.since >= UNFINISHED_S) and torn.form.strip()
        ]

    def finish(self) -> list[tuple[tuple[str, int], bytes]]:
        """Hand out everything that will have no end; a bar that wiped itself away is nothing."""
        found = [
            (key, torn.form)
            for key, torn in self._torn.items()
            if (torn.form.strip() if torn.redrawn else torn.form)
        ]
        self._torn.clear()
        return found

    def _keep(
        self, key: tuple[str, int], rest: bytes, torn: _Torn, now: float, whole: bytes | None
    ) -> bytes | None:
        if not torn.text:
            torn.since = now
        if b"\r" in rest:
            torn.redrawn = True
            rest = _newest_form(rest) + (b"\r" if rest.endswith(b"\r") else b"")
        torn.text = rest
        self._torn[key] = torn
        if len(rest) <= self._long_line:
            return whole
        torn.text, torn.begun = b"", True
        return rest if whole is None else whole + b"\n" + rest


def _newest_form(line: bytes) -> bytes:
    return line.rstrip(b"\r").rpartition(b"\r")[2]


def _newest_forms(lines: bytes) -> bytes:
    return b"\n".join(
        [_newest_form(line) if b"\r" in line else line for line in lines.split(b"\n")]
    )


def _without_empty_end(lines: bytes) -> bytes | None:
    """Drop the first of `lines` if it is but the end of one that was handed out."""
    lines = _newest_forms(lines) if b"\r" in lines else lines
    first, newline, others = lines.partition(b"\n")
    if first:
        return lines
    return others if newline else None
