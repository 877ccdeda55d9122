"""Metrics lines: what a program tells of its progress, found among its other output.

A metrics line is a JSON object with a whole number `step`; or, with a pattern, a line that the
pattern matches. What looks like one and is broken stays ordinary output, and is counted.
"""

from __future__ import annotations

import functools
import json
import math
import re
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Dict, List, Mapping, Optional, Pattern, Tuple, Union

from runner.core.codec import bounded, matching, parse_json
from runner.core.protocol.events import COUNT, TIME
from runner.core.protocol.paths import RANK

MAX_LINE = 4096  # bytes of a metrics line
MAX_CHARS = 200  # of a line that a pattern is searched in: the rest is cut
MAX_UNIT, MAX_TEXT, MAX_MORE = 32, 200, 32
"""Characters of a unit and of other texts, and the number of other figures of a line."""

MAX_RATE = 1e300
MAX_STEP = 1 << 53
"""Larger than any step: JSON readers of other languages have no larger whole numbers."""

_STEP_KEY = b'"step"'
_LOOKS_LIKE_ONE = re.compile(rb'\{\s*"step"\s*:\s*(?:-?[0-9I]|NaN)')
"""A number as the step: other loggers have a text there, the name of what they do."""

_NUMBER = re.compile("[0-9]{1,15}")

_SHOWN = ("step", "steps", "loss", "rate", "unit")

Figure = Union[int, float, str]


@dataclass(frozen=True)
class Metrics:
    """The figures of one line."""

    step: int
    steps: Optional[int] = None  # in all
    loss: Optional[float] = None
    rate: Optional[float] = None  # of `unit` per second
    unit: str = ""
    more: Mapping[str, Figure] = field(default_factory=dict)
    is_all_figures: bool = field(default=False, compare=False)  # of the line: it says nothing else

    def updating(self, earlier: Optional[Metrics]) -> Metrics:
        """Return the same with those figures of an earlier line that this one does not have."""
        if earlier is None:
            return self
        new = self.with_steps_of(earlier)
        if new.loss is None:
            new = replace(new, loss=earlier.loss)
        if new.rate is None:
            new = replace(new, rate=earlier.rate, unit=earlier.unit)
        more = {**earlier.more, **new.more}
        return replace(new, more=more) if len(more) <= MAX_MORE else new

    def with_steps_of(self, earlier: Optional[Metrics]) -> Metrics:
        """Return the same with the steps in all of an earlier line, if there are none here.

        A step beyond them counts something else.
        """
        steps = earlier.steps if earlier else None
        is_theirs = self.steps is None and steps is not None and self.step <= steps
        return replace(self, steps=steps) if is_theirs else self

    def as_data(self) -> Dict[str, Any]:
        """Return the figures as JSON data, in which NaN and infinity are texts."""
        more = {name: _as_json(value) for name, value in self.more.items()}
        figures = {"loss": _as_json(self.loss), "rate": _as_json(self.rate), "unit": self.unit}
        return {"step": self.step, "steps": self.steps, **figures, "more": more}


@dataclass(frozen=True)
class RankProgress:
    """How far a rank has come, by its last metrics line."""

    rank: int = field(metadata=RANK)
    step: int = field(metadata=COUNT)
    steps: Optional[int] = field(default=None, metadata=COUNT)
    rate: Optional[float] = field(default=None, metadata=bounded(0, MAX_RATE))
    unit: str = field(default="", metadata=matching(re.compile(rf".{{0,{MAX_UNIT}}}")))
    left_s: Optional[float] = field(default=None, metadata=TIME)  # None if that is not known


@functools.lru_cache(maxsize=16)
def compile_pattern(pattern: str) -> Optional[Pattern[str]]:
    """Return the pattern of a run; None for none, and for one that only a newer Python knows."""
    try:
        return re.compile(pattern, re.ASCII) if pattern else None
    except re.error:
        return None


def may_have_metrics(data: bytes, pattern: Optional[Pattern[str]]) -> bool:
    """Return whether a look at each line is worth it: without a pattern it rarely is."""
    return pattern is not None or _STEP_KEY in data


def parse_metrics(line: bytes, pattern: Optional[Pattern[str]] = None) -> Optional[Metrics]:
    """Return the metrics of a line, None for any other line.

    Raises:
        ValueError: It looks like a metrics line and is broken.
    """
    line = _last_drawn(line).strip()
    if line.startswith(b"{") and _STEP_KEY in line:
        is_meant = _LOOKS_LIKE_ONE.match(line) is not None
        try:
            if len(line) > MAX_LINE:
                raise ValueError(f"is longer than {MAX_LINE} bytes")
            data = parse_json(line.decode())
            if is_meant or "step" in data:
                is_meant |= type(data["step"]) in (int, float)
                return _from_json(data)
        except ValueError as error:
            if is_meant:
                raise ValueError(_reason(error)) from None
    return None if pattern is None else _from_text(line, pattern)


def _from_text(line: bytes, pattern: Pattern[str]) -> Optional[Metrics]:
    """Return the steps that the groups of a pattern find in the beginning of a line."""
    text = line[: 4 * MAX_CHARS].decode(errors="replace")
    match = pattern.search(text[:MAX_CHARS])
    numbers = [each for each in match.groups() if each is not None] if match else []
    if not numbers or not all(map(_NUMBER.fullmatch, numbers)):
        return None
    steps = int(numbers[1]) if len(numbers) > 1 else None
    return Metrics(step=int(numbers[0]), steps=steps)


def _last_drawn(line: bytes) -> bytes:
    """Return what a line that redraws itself shows last; a carriage return at its end stays."""
    drawn = line.rstrip(b"\r")
    return line[drawn.rfind(b"\r") + 1 :]


def _reason(error: ValueError) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "is no UTF-8"
    return "is no JSON" if isinstance(error, json.JSONDecodeError) else str(error)


def _from_json(data: Mapping[str, Any]) -> Metrics:
    """Return the metrics in an object; raise ValueError if a figure has the wrong type."""
    unit = data.get("unit")
    if unit is not None and not (isinstance(unit, str) and len(unit) <= MAX_UNIT):
        raise ValueError(f"its unit is no text of up to {MAX_UNIT} characters")
    step = _whole("step", data["step"])
    assert step is not None  # noqa: S101 (for mypy)
    others = [(name, value) for name, value in data.items() if name not in _SHOWN]
    kept = [(name, value) for name, value in others if name.isprintable() and _is_figure(value)]
    return Metrics(
        step=step,
        steps=_whole("steps", data.get("steps"), is_optional=True),
        loss=_number("loss", data.get("loss")),
        rate=_number("rate", data.get("rate")),
        unit="".join(filter(str.isprintable, unit or "")),
        more=dict(kept[:MAX_MORE]),
        is_all_figures=all(_is_number(value) for _, value in others),
    )


def _whole(name: str, value: object, *, is_optional: bool = False) -> Optional[int]:
    if value is None and is_optional:
        return None
    is_whole = type(value) is int or (type(value) is float and value.is_integer())
    if not is_whole or not 0 <= value < MAX_STEP:  # type: ignore[operator]  # checked
        raise ValueError(f"its {name} is no whole number from 0")
    return int(value)  # type: ignore[call-overload,no-any-return]  # checked


def _number(name: str, value: object) -> Optional[float]:
    if value is not None and not _is_number(value):
        raise ValueError(f"its {name} is no number")
    return value  # type: ignore[return-value]  # checked


def _is_number(value: object) -> bool:
    return type(value) is float or (type(value) is int and abs(value) < MAX_STEP)


def _is_figure(value: object) -> bool:
    return _is_number(value) or (isinstance(value, str) and len(value) <= MAX_TEXT)


def _as_json(value: Optional[Figure]) -> Optional[Figure]:
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


class MetricsReader:
    """The metrics in a growing stream that comes in pieces, the next one from `position` on.

    `on_broken` is called with where a broken metrics line begins, and what is wrong with it.
    """

    def __init__(
        self,
        pattern: Optional[Pattern[str]] = None,
        position: int = 0,
        on_broken: Callable[[int, str], object] = lambda _offset, _reason: None,
    ) -> None:
        self.position = position
        self._pattern, self._on_broken = pattern, on_broken
        self._line_start, self._partial = position, b""

    def feed(self, data: bytes) -> List[Tuple[int, Metrics]]:
        """Take a piece; return where each metrics line that it completes begins, and its figures.

        The end of a line without a line break may be torn, and counts as no line.
        """
        line_end = self.position
        self.position += len(data)
        if not may_have_metrics(self._partial + data, self._pattern):
            end_of_lines = data.rfind(b"\n") + 1
            if end_of_lines:
                self._line_start, self._partial = line_end + end_of_lines, b""
            self._partial = _last_drawn(self._partial + data[end_of_lines:])[: MAX_LINE + 1]
            return []
        *lines, rest = data.split(b"\n")
        found = []
        for line in lines:
            start, text = self._line_start, _last_drawn(self._partial + line)[: MAX_LINE + 1]
            line_end += len(line) + 1
            self._line_start, self._partial = line_end, b""
            try:
                metrics = parse_metrics(text, self._pattern)
            except ValueError as error:
                self._on_broken(start, str(error))
                continue
            if metrics is not None:
                found.append((start, metrics))
        self._partial = _last_drawn(self._partial + rest)[: MAX_LINE + 1]
        return found
