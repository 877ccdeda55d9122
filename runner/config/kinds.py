"""Kinds: the legal values of keys in words, and the reading of whole sections."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from runner.config.values import KINDS, LOGIN_RULE, Illegal, Kind, scalar_text
from runner.core.errors import ConfigError, Problem
from runner.core.spec import keys_of, section_of

MAX_LISTED_KEYS = 5


class Problems(list[Problem]):
    """Problems that were found so far."""

    def report(self, where: str, message: str, hint: str = "") -> None:
        """Add a problem."""
        self.append(Problem(where, message, hint))

    def raise_any(self) -> None:
        """Raise a ConfigError with all of them, if there are any."""
        if self:
            raise ConfigError(self)


def suggest(word: str, legal: Iterable[str], prefix: str = "") -> str:
    """Return "did you mean …?", or "" when nothing is near."""
    matches = difflib.get_close_matches(word, list(legal), n=1, cutoff=0.6)
    return f"did you mean {prefix}{matches[0]}?" if matches else ""


def join_or(words: Sequence[str]) -> str:
    """Return "a, b or c"."""
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def unknown_key(where: str, key: str, legal: Sequence[str]) -> Problem:
    """Return the problem of an unknown key."""
    full_key = f"{where}.{key}" if where else key
    hint = suggest(key, legal, f"{where}." if where else "")
    if "passw" in key and where.startswith("cluster"):
        hint = LOGIN_RULE
    near = difflib.get_close_matches(key, legal, n=3, cutoff=0.4)
    listed = f"; near it: {', '.join(near)}" if near else ""
    if len(legal) <= MAX_LISTED_KEYS:
        listed = f"; legal here: {', '.join(legal)}"
    return Problem(full_key, f"there is no such key{listed}", hint)


def choose(problems: Problems, where: str, value: object, legal: Sequence[str]) -> str:
    """Read one of a few words."""
    text = scalar_text(value)
    if text in legal:
        return str(text)
    hint = suggest(text or "", legal)
    problems.report(where, f"{text or value!r} is not legal; choose {join_or(legal)}", hint)
    return legal[0]


def legal_values(option: dataclasses.Field[Any]) -> str:
    """Return the legal values of a key in words."""
    kind = option.metadata["kind"]
    if section_of(option):
        return "see below"
    if isinstance(kind, tuple):
        words = [*kind, "null"] if option.default == "" else kind
        return join_or(words)
    return KINDS[kind].legal


def read_value(problems: Problems, where: str, kind: str, value: Any) -> Any:
    """Return a value as its kind reads it, None if it is not legal, which is reported."""
    if not KINDS[kind].is_mapping:
        return _read(problems, where, KINDS[kind], value)
    if not isinstance(value, Mapping) and value is not None:
        problems.report(where, f"must be {KINDS[kind].legal}, not {value!r}")
        return None
    items = {str(name): item for name, item in (value or {}).items()}
    return {
        name: _read(problems, f"{where}.{name}", KINDS[kind], name, item)
        for name, item in items.items()
    }


def _read_key(problems: Problems, where: str, option: dataclasses.Field[Any], value: Any) -> Any:
    kind = option.metadata["kind"]
    if value is None and option.default == "":
        return ""
    if isinstance(kind, tuple):
        return choose(problems, where, value, kind)
    return read_value(problems, where, kind, value)


def _read(problems: Problems, where: str, kind: Kind, *given: Any) -> Any:
    try:
        return kind.read(*given)
    except Illegal as illegal:
        message = illegal.message or f"must be {kind.legal}, not {given[-1]!r}"
        problems.report(where, message, illegal.hint)
        return None


def read_section(
    problems: Problems, where: str, section: type, values: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the values of a section, those below it as objects of their classes.

    A key that is not among the values, or has a value that is not legal, is left out.
    """
    read: dict[str, Any] = {}
    for name, option in keys_of(section).items():
        if name not in values:
            continue
        key = f"{where}.{name}" if where else name
        value = values[name]
        nested = section_of(option)
        if nested is None:
            known = len(problems)
            found = _read_key(problems, key, option, value)
            if len(problems) == known:
                read[name] = found
        elif isinstance(value, Mapping):
            read[name] = nested(**read_section(problems, key, nested, value))
        else:
            problems.report(key, f"takes a mapping of keys to values, not {value!r}")
    return read
