"""Overrides: words of a command line, read by the parser of Hydra, and the keys they name."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.config.validation import scalar_text

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

HYDRA_LITERALS = ("true", "false", "null", "nan", "inf")
RANGES = re.compile(r"(\+{0,2}(?:cluster\.(?:only|exclude)|task\.nodes)=)([^'\"]*)")
MISSING_TEXT = "${oc.decode:'\"???\"'}"
"""The text `???`, which alone means in OmegaConf that a value is missing."""
COMMAND_LINE = re.compile(r"(task\.command=)([^\s,'\"\[{]+\s[^,]*)")
HOME_PATH = re.compile(r"([^\s=]+=)(~[\w.-]*(?:/[^\s'\"\\\[\]{}(),=]*)?)")


def is_override(word: str) -> bool:
    """Return whether a word is meant as an override, such as KEY=VALUE or ~KEY, legal or not.

    `~user/x` is a path.
    """
    return re.match(r"\+|~[^/=]*(=|$)|[^-\s=][^\s=]*=", word) is not None


def names_file(word: str) -> bool:
    """Return whether a word is the path of a file here; it may be any text."""
    try:
        return Path(word).is_file()
    except (OSError, ValueError):  # such as one that is too long
        return False


def parse_overrides(words: Sequence[str]) -> list[Override]:
    """Return the overrides, or raise what Hydra raises for one that it cannot read."""
    # Imported here, because most verbs need nothing of Hydra.
    from hydra.core.override_parser.overrides_parser import OverridesParser  # noqa: PLC0415

    return OverridesParser.create().parse_overrides(list(map(to_hydra, words)))


def to_hydra(word: str) -> str:
    """Return a word as Hydra is to read it.

    Ranges of nodes, command lines and paths below a home folder are quoted. `~KEY` sets a key of
    the schema to its default, because Hydra cannot delete a key that holds null.
    """
    if word.startswith("~") and (default := default_of(word[1:])):
        return f"{word[1:]}={hydra_value(default[0])}"
    if match := RANGES.fullmatch(word):
        return match[1] + re.sub(r"[\w.-]+(\[[\d,-]+\][\w.-]*)+", r'"\g<0>"', match[2])
    if match := COMMAND_LINE.fullmatch(word):
        return match[1] + hydra_value(match[2])
    match = HOME_PATH.fullmatch(word)
    return f'{match[1]}"{match[2]}"' if match else word


def override_key(word: str) -> str:
    """Return the key or the group that a word overrides, also of one that Hydra cannot read."""
    from hydra.errors import HydraException  # noqa: PLC0415

    try:
        override = parse_overrides([word])[0]
    except HydraException:
        return word.lstrip("+~").partition("=")[0]
    return str(override.key_or_group) + (f"@{override.package}" if override.package else "")


def chosen_cluster(words: Sequence[str]) -> str:
    """Return what the last of the words that choose a cluster chooses, as typed, or ""."""
    return next((w.partition("=")[2] for w in reversed(words) if override_key(w) == "cluster"), "")


def with_arguments(extra_args: Any, words: Sequence[str]) -> Any:
    """Return a value of `task.extra_args` with words that the program takes as they are."""
    # OmegaConf: a backslash before `${` makes text of it, and is itself doubled there.
    literal = [re.sub(r"(\\*)\$\{", r"\1\1\\${", word) for word in words]
    if isinstance(extra_args, str):
        return f"{extra_args} {shlex.join(literal)}"
    return [*(extra_args or ()), *(MISSING_TEXT if w == "???" else w for w in literal)]


def hydra_value(value: Any) -> str:
    """Return a value in the grammar of Hydra's overrides, quoted where it needs to be."""
    if value is None:
        return "null"
    if isinstance(value, list):
        return f"[{','.join(map(hydra_value, value))}]"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{key}:{hydra_value(item)}' for key, item in value.items())}}}"
    text = scalar_text(value) or str(value)
    bare = re.fullmatch(r"[A-Za-z_/][A-Za-z0-9_/.:@%+-]*", text)
    if not isinstance(value, str) or (bare and text.lower() not in HYDRA_LITERALS):
        return text
    # Backslashes count only before a quote, the closing one included: there they are doubled.
    escaped = re.sub(r'(\\*)("|\Z)', lambda run: 2 * run[1] + (run[2] and '\\"'), text)
    return f'"{escaped}"'


def _field_of(key: str) -> dataclasses.Field[Any] | None:
    # Imported here, because it brings Hydra.
    from runner.config.schema import SECTIONS  # noqa: PLC0415

    section_name, _, name = key.rpartition(".")
    section_name = re.sub(r"^cluster\.nodes\..+", "cluster.nodes.NODE", section_name)
    fields = dataclasses.fields(SECTIONS[section_name]) if section_name in SECTIONS else ()
    return next((each for each in fields if each.name == name), None)


def meaning_of(key: str) -> str:
    """Return the help of a key of the schema and its legal values, "" for any other key."""
    field = _field_of(key)
    return f"{field.metadata['help']} ({field.metadata['legal']})" if field else ""


def default_of(key: str) -> list[Any]:
    """Return the default of a key of the schema, in a list: empty for a mapping or no such key."""
    field = None if key.startswith("cluster.nodes.") else _field_of(key)
    if field is None or field.default is not dataclasses.MISSING:
        return [field.default] if field else []
    factory: Any = field.default_factory
    return [[]] if factory is list else []
