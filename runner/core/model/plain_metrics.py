"""Figures in plain lines: the usual forms in which programs print a step and a loss.

A line counts only if it begins with a step or an epoch, after what a logger puts before it, and
names a loss, an accuracy or a perplexity after that. So no other text is taken for one.
"""

from __future__ import annotations

import re
from typing import Dict

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


def may_be_plain(data: bytes) -> bool:
    """Return whether a look at each line of some output is worth it."""
    lower = data.lower()
    return any(word in lower for word in _RESULTS)


def plain_figures(text: str) -> Dict[str, str]:
    """Return the figures of a line in a usual form, {} for any other."""
    if text.startswith("{'"):  # of Hugging Face's Trainer
        items = dict(_DICT_ITEM.findall(text))
        return items if "epoch" in items and any(map(_RESULT.fullmatch, items)) else {}
    found: Dict[str, str] = {}
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
    figures: Dict[str, str] = {}
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
