"""Metrics lines: what a program tells of its progress, found among its other output.

That is a JSON object with a whole number `step`, a line that the run's pattern matches, or a plain
line with a step or an epoch, then a loss, an accuracy or a perplexity. No other text is taken.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from runner.core.wire.codec import parse_json

MAX_LINE = 4096  # bytes of a metrics line
MAX_CHARS = 200  # of a line that a pattern is searched in: the rest is cut
MAX_PLAIN = 1000  # bytes of a line in a usual form
MAX_UNIT = 32  # characters
MAX_MORE = 32  # other figures of a line
MAX_STEP = 1 << 53
"""Larger than any step: JSON readers of other languages have no larger whole numbers."""

_STEP_KEY = b'"step"'
_OWN = ("step", "steps", "loss", "rate", "unit")
TOLD = 2
STEPS = 1
EPOCHS = 0
"""Forms of lines: JSON or of the pattern, plain with a step, and plain without one.

Of a rank only those in the highest form count: others sum up the same figures.
"""

_RESULTS = (b"loss", b"acc", b"perplexity", b"ppl")
_COUNT = r"[0-9]{1,15}(?![.\w])"
COUNT_TEXT = re.compile("[0-9]{1,15}")

_NUMBER = r"[-+]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[-+]?[0-9]+)?|nan|inf(?:inity)?)"
_FLAGS = re.IGNORECASE | re.ASCII

_LOGGER = re.compile(
    r"(?:[^a-z]|(?:info|debug|train|training|rank|main|root)(?![a-z])|[a-z]\w*(?:\.\w+)+)*", _FLAGS
)
"""Times, levels, ranks and names of modules."""

_COUNTERS = (
    re.compile(rf"epochs?[\s:=#\[(]*(?P<epoch>{_COUNT})(?:\s*/\s*(?P<epochs>{_COUNT}))?", _FLAGS),
    re.compile(
        r"[\s,;:|\])-]*(?:(?:(?:global[_ ])?step|iter(?:ation)?|batch)[\s:=#\[(]*|\[?(?=[0-9 ]+/))"
        rf"\s*(?P<step>{_COUNT})(?:\s*/\s*(?P<steps>{_COUNT}))?",
        _FLAGS,
    ),
    re.compile(
        rf"[\s:]*[0-9]{{1,3}}%\|[^|]*\|\s*(?P<step>{_COUNT})/(?P<steps>{_COUNT})\s*\[", _FLAGS
    ),
)
"""An epoch, a step or the tutorials' [640/60000], and tqdm's bar: one or two of them."""

_FIGURE = re.compile(
    r"(?<![\w./@-])(?<![a-z]\s)(?P<name>(?:(?:train|training|val|valid|validation|eval|test|lm|avg|"
    r"average|mean|total|grad|learning)\s)?[a-z][\w./@-]{0,99})(?:\s*[=:]\s*|(?P<space>\s+))"
    rf"(?P<value>{_NUMBER})(?!\.?\w|[/@])(?P<percent>%)?",
    _FLAGS,
)
_DICT_ITEM = re.compile(rf"'([\w./-]{{1,100}})': '?({_NUMBER})'?(?=[,}}])", _FLAGS)
_RATE = re.compile(r"(?<![\w.])([0-9]+(?:\.[0-9]+)?)\s?(?:([a-z]{1,20})/s|s/([a-z]{1,20}))", _FLAGS)

_RESULT = re.compile(r"(?:.*[_/. -])?(?:loss|acc|accuracy|perplexity|ppl)(?:@?[0-9])?", _FLAGS)
_SPACED = re.compile(rf"{_RESULT.pattern}|lr|learning[_ ]rate|grad[_ ]norm", _FLAGS)
"""Names that a number may follow without "=" or ":"; not a whole one, which counts things."""


@dataclass(frozen=True)
class Metrics:
    step: int | None  # None where a line has figures alone
    steps: int | None = None  # in all
    loss: float | None = None
    rate: float | None = None  # of `unit` per second
    unit: str = ""
    more: Mapping[str, float] = field(default_factory=dict)
    epoch: int | None = None  # of a plain line: steps may begin anew in each
    form: int = field(default=TOLD, compare=False)
    is_all_figures: bool = field(default=False, compare=False)  # of the line: it says nothing else

    def updating(self, earlier: Metrics) -> Metrics:
        """Return the same with those figures of an earlier line that this one does not have.

        A step beyond the steps in all counts something else.
        """
        steps = self.steps
        if steps is None and (self.step or 0) <= (earlier.steps or 0):
            steps = earlier.steps
        more = {**earlier.more, **self.more}
        return replace(
            self,
            step=earlier.step if self.step is None else self.step,
            steps=steps,
            loss=earlier.loss if self.loss is None else self.loss,
            rate=earlier.rate if self.rate is None else self.rate,
            unit=earlier.unit if self.rate is None else self.unit,
            more=more if len(more) <= MAX_MORE else self.more,
        )

    def as_data(self) -> dict[str, Any]:
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
        self.metrics: Metrics | None = None
        self._told_count = 0

    def take(self, metrics: Metrics) -> bool:
        """Take a line; return whether it counts."""
        earlier = self.metrics
        if earlier is not None and metrics.form < earlier.form:
            return False
        if earlier is None or metrics.form > earlier.form:
            self._told_count = 0
            earlier = metrics
        if metrics.steps is not None:
            self._told_count += 1
        elif self._told_count > 1 and metrics.step is not None:
            return False
        self.metrics = metrics.updating(earlier)
        return True


@functools.lru_cache(maxsize=16)
def compile_pattern(pattern: str) -> re.Pattern[str] | None:
    """Return the pattern of a run; None for none, and for one that only a newer Python knows."""
    try:
        return re.compile(pattern, re.ASCII) if pattern else None
    except re.error:
        return None


def may_have_metrics(data: bytes, pattern: re.Pattern[str] | None) -> bool:
    """Return whether a look at each line is worth it: it rarely is."""
    return pattern is not None or _STEP_KEY in data or may_be_plain(data)


def parse_metrics(line: bytes, pattern: re.Pattern[str] | None = None) -> Metrics | None:
    line = line.rstrip(b"\r")
    line = line[line.rfind(b"\r") + 1 :].strip()  # what a line that redraws itself shows last
    if line.startswith(b"{") and _STEP_KEY in line and len(line) <= MAX_LINE:
        with contextlib.suppress(ValueError):
            data = parse_json(line.decode())
            step = _whole(data.get("step"))
            if step is not None:
                return _from_json(step, data)
    if pattern is not None:
        text = line[: 4 * MAX_CHARS].decode(errors="replace")
        return _from_texts(_pattern_figures(text[:MAX_CHARS], pattern), TOLD)
    if may_be_plain(line):
        found = plain_figures(line[:MAX_PLAIN].decode(errors="replace"))
        return _from_texts(found, STEPS if "step" in found else EPOCHS)
    return None


def _from_json(step: int, data: Mapping[str, Any]) -> Metrics:
    """Return the metrics in an object; what is of the wrong type is left out."""
    unit = data.get("unit")
    numbers = {name: value for name, value in data.items() if _number(value) is not None}
    names = [name for name in numbers if name not in _OWN and name.isprintable()]
    return Metrics(
        step=step,
        steps=_whole(data.get("steps")),
        loss=numbers.get("loss"),
        rate=numbers.get("rate"),
        unit="".join(filter(str.isprintable, unit))[:MAX_UNIT] if isinstance(unit, str) else "",
        more={name: numbers[name] for name in names[:MAX_MORE]},
        is_all_figures=all(
            value is None or name == "unit" or name in numbers for name, value in data.items()
        ),
    )


def _pattern_figures(text: str, pattern: re.Pattern[str]) -> dict[str, str]:
    """Return what the groups of a pattern find: by their names, or the step and all steps."""
    match = pattern.search(text)
    if match is None:
        return {}
    if pattern.groupindex:
        return {name: value for name, value in match.groupdict().items() if value is not None}
    values = [value for value in match.groups() if value is not None]
    are_counts = all(COUNT_TEXT.fullmatch(value) for value in values)
    return dict(zip(("step", "steps"), values, strict=False)) if are_counts else {}


def _from_texts(found: Mapping[str, str], form: int) -> Metrics | None:
    """Return the metrics of a plain line, by the texts of its figures."""
    counts: dict[str, int] = {}
    numbers: dict[str, float] = {}
    for name, text in found.items():
        if name in ("step", "steps", "epoch", "epochs") and COUNT_TEXT.fullmatch(text):
            counts[name] = int(text)
        elif name not in ("steps", "epochs", "unit"):
            try:
                numbers[name] = float(text)
            except ValueError:
                continue
    loss = numbers.pop("loss", None)
    rate = numbers.pop("rate", None)
    step = counts.get("step")
    steps = counts.get("steps")
    epoch = counts.get("epoch")
    if step is None:
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
        loss=loss,
        rate=rate,
        unit=found.get("unit", ""),
        more=dict([*numbers.items()][:MAX_MORE]),
        epoch=epoch,
        form=form,
    )


def _whole(value: object) -> int | None:
    number = _number(value)
    if number is None or not 0 <= number < MAX_STEP or number != int(number):
        return None
    return int(number)


def _number(value: object) -> float | None:
    """Return a number as it is, None for anything else, and for a whole one that is too large."""
    if type(value) is float or (type(value) is int and abs(value) < MAX_STEP):
        return value
    return None


def _as_json(value: float | None) -> float | str | None:
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def may_be_plain(data: bytes) -> bool:
    """Return whether a look at each line of some output is worth it."""
    lower = data.lower()
    return any(word in lower for word in _RESULTS)


def plain_figures(text: str) -> dict[str, str]:
    """Return the figures of a line in a usual form, {} for any other."""
    if text.startswith("{'"):  # of Hugging Face's Trainer
        items = dict(_DICT_ITEM.findall(text))
        return items if "epoch" in items and any(map(_RESULT.fullmatch, items)) else {}
    found: dict[str, str] = {}
    logger = _LOGGER.match(text)
    place = logger.end() if logger else 0
    if "%|" in text[:place]:
        place = 0
    for counter in _COUNTERS:
        match = counter.match(text, place)
        if match and "step" not in found:
            found.update({name: value for name, value in match.groupdict().items() if value})
            place = match.end()
    if not found:
        return {}
    figures: dict[str, str] = {}
    for match in _FIGURE.finditer(text, place):
        name = "_".join(match["name"].split())
        is_count = match["value"].isdigit() or match["percent"]
        if match["space"] and (is_count or not _SPACED.fullmatch(name)):
            continue
        if name != "v_num":  # Lightning's number of the run
            figures.setdefault("loss" if name.lower() == "loss" else name, match["value"])
    if not any(map(_RESULT.fullmatch, figures)):
        return {}
    rate = _RATE.search(text, place)
    if rate and float(rate[1]):
        figures["rate"] = rate[1] if rate[2] else str(1 / float(rate[1]))
        figures["unit"] = rate[2] or rate[3]
    return {**figures, **found}
