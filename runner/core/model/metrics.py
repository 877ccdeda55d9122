"""Metrics lines: what a program tells of its progress, found among its other output.

A metrics line is a JSON object with a whole number `step`, a line that the pattern of the run
matches, or, without a pattern, one in a usual form. What looks like the first and is broken stays
ordinary output, and is counted.
"""

from __future__ import annotations

import functools
import json
import math
import re
from dataclasses import dataclass, field, replace
from typing import Any, Dict, Mapping, Optional, Pattern, Union

from runner.core.codec import bounded, matching, parse_json
from runner.core.model.plain_metrics import COUNT_TEXT, may_be_plain, plain_figures
from runner.core.protocol.events import COUNT, TIME
from runner.core.protocol.paths import RANK

MAX_LINE = 4096  # bytes of a metrics line
MAX_CHARS = 200  # of a line that a pattern is searched in: the rest is cut
MAX_PLAIN = 1000  # bytes of a line in a usual form
MAX_UNIT, MAX_TEXT, MAX_MORE = 32, 200, 32
"""Characters of a unit and of other texts, and the number of other figures of a line."""

MAX_RATE = 1e300
MAX_STEP = 1 << 53
"""Larger than any step: JSON readers of other languages have no larger whole numbers."""

_STEP_KEY = b'"step"'
_LOOKS_LIKE_ONE = re.compile(rb'\{\s*"step"\s*:\s*(?:-?[0-9I]|NaN)')
"""A number as the step: other loggers have a text there, the name of what they do."""

_SHOWN = ("step", "steps", "loss", "rate", "unit")

TOLD = 2
STEPS = 1
EPOCHS = 0
"""Forms of lines: JSON or of the pattern, plain with a step, and plain without one.

Of a rank only those in the highest form count: others sum up the same figures.
"""

Figure = Union[int, float, str]


@dataclass(frozen=True)
class Metrics:
    """The figures of one line."""

    step: Optional[int]  # None where a line has figures alone
    steps: Optional[int] = None  # in all
    loss: Optional[float] = None
    rate: Optional[float] = None  # of `unit` per second
    unit: str = ""
    more: Mapping[str, Figure] = field(default_factory=dict)
    epoch: Optional[int] = None  # of a plain line: steps may begin anew in each
    form: int = field(default=TOLD, compare=False)
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
        if earlier is None or self.steps is not None:
            return self
        if self.step is None:
            return replace(self, step=earlier.step, steps=earlier.steps)
        if earlier.steps is None or self.step > earlier.steps:
            return self
        return replace(self, steps=earlier.steps)

    def as_data(self) -> Dict[str, Any]:
        """Return the figures as JSON data, in which NaN and infinity are texts."""
        more = {name: _as_json(value) for name, value in self.more.items()}
        figures = {"loss": _as_json(self.loss), "rate": _as_json(self.rate), "unit": self.unit}
        return {"step": self.step, "steps": self.steps, **figures, "more": more}


class LatestMetrics:
    """The latest metrics of a rank: of its lines in the highest form, those that count its steps.

    Where lines say how many steps there are, one that does not counts something else, such as an
    evaluation; a single one tells it for those after it.
    """

    def __init__(self) -> None:
        self.metrics: Optional[Metrics] = None
        self._told_count = 0

    def take(self, metrics: Metrics) -> bool:
        """Take a line; return whether it counts."""
        if self.metrics is not None and metrics.form < self.metrics.form:
            return False
        if self.metrics is not None and metrics.form > self.metrics.form:
            self.metrics = None
            self._told_count = 0
        if metrics.steps is not None:
            self._told_count += 1
        elif self._told_count > 1 and metrics.step is not None:
            return False
        self.metrics = metrics.updating(self.metrics)
        return True


@dataclass(frozen=True)
class RankProgress:
    """How far a rank has come, by its last metrics line."""

    rank: int = field(metadata=RANK)
    step: int = field(metadata=COUNT)
    steps: Optional[int] = field(default=None, metadata=COUNT)
    rate: Optional[float] = field(default=None, metadata=bounded(0, MAX_RATE))
    unit: str = field(default="", metadata=matching(re.compile(rf".{{0,{MAX_UNIT}}}")))
    left_s: Optional[float] = field(default=None, metadata=TIME)  # None if that is not known


def seconds_left(steps: Optional[int], step: int, done: int, seconds: float) -> Optional[float]:
    """Return how long the rest takes, after the last `done` steps took so many seconds."""
    if steps is None or done <= 0:
        return None
    return max(0, steps - step) * seconds / done


@functools.lru_cache(maxsize=16)
def compile_pattern(pattern: str) -> Optional[Pattern[str]]:
    """Return the pattern of a run; None for none, and for one that only a newer Python knows."""
    try:
        return re.compile(pattern, re.ASCII) if pattern else None
    except re.error:
        return None


def may_have_metrics(data: bytes, pattern: Optional[Pattern[str]]) -> bool:
    """Return whether a look at each line is worth it: it rarely is."""
    return pattern is not None or _STEP_KEY in data or may_be_plain(data)


def parse_metrics(line: bytes, pattern: Optional[Pattern[str]] = None) -> Optional[Metrics]:
    """Return the metrics of a line, None for any other line.

    Raises:
        ValueError: It looks like a metrics line and is broken.
    """
    line = line.rstrip(b"\r")
    line = line[line.rfind(b"\r") + 1 :].strip()  # what a line that redraws itself shows last
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
    if pattern is not None:
        text = line[: 4 * MAX_CHARS].decode(errors="replace")
        return _from_texts(_pattern_figures(text[:MAX_CHARS], pattern), TOLD)
    if may_be_plain(line):
        found = plain_figures(line[:MAX_PLAIN].decode(errors="replace"))
        return _from_texts(found, STEPS if "step" in found else EPOCHS)
    return None


def _pattern_figures(text: str, pattern: Pattern[str]) -> Dict[str, str]:
    """Return what the groups of a pattern find: by their names, or the step and all steps."""
    match = pattern.search(text)
    if match is None:
        return {}
    if pattern.groupindex:
        return {name: value for name, value in match.groupdict().items() if value is not None}
    values = [value for value in match.groups() if value is not None]
    if not values or not all(COUNT_TEXT.fullmatch(value) for value in values):
        return {}
    return {"step": values[0]} if len(values) == 1 else {"step": values[0], "steps": values[1]}


def _from_texts(found: Mapping[str, str], form: int) -> Optional[Metrics]:
    """Return the metrics of a plain line, by the texts of its figures."""
    counts: Dict[str, int] = {}
    numbers: Dict[str, Figure] = {}
    for name, text in found.items():
        if name in ("step", "steps", "epoch", "epochs") and COUNT_TEXT.fullmatch(text):
            counts[name] = int(text)
        elif name not in ("steps", "epochs", "unit") and name not in numbers:
            try:
                numbers[name] = float(text)
            except ValueError:
                continue
    loss = numbers.pop("loss", None)
    rate = numbers.pop("rate", None)
    step = counts.get("step")
    steps = counts.get("steps")
    epoch = counts.get("epoch")
    if epoch is not None and step is None:
        step = epoch
        steps = counts.get("epochs")
        epoch = None
    elif epoch is not None:
        numbers["epoch"] = epoch
    if step is None and loss is None and not numbers:
        return None
    return Metrics(
        step=step,
        steps=steps,
        loss=loss,  # type: ignore[arg-type]  # a number
        rate=rate,  # type: ignore[arg-type]  # a number
        unit=found.get("unit", ""),
        more=dict([*numbers.items()][:MAX_MORE]),
        epoch=epoch,
        form=form,
    )


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
