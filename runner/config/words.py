"""Words of a command line: what they override, and as Hydra is to read them.

Hydra's grammar decides on lists and mappings. Texts are quoted for it, so that they reach the run
as they were written: `3.10`, `0123`, `2024_11_05` and `off` are texts.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.config.kinds import scalar_text
from runner.core.errors import ConfigError, Problem
from runner.core.spec import GROUPS, Spec, keys_of, section_of, written_default

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

ASSIGNMENT = re.compile(r"(\+{0,2})([^\s=]+?)=(.*)", re.DOTALL)
NULL = re.compile("null|Null|NULL")
LITERAL = re.compile("true|True|TRUE|false|False|FALSE|" + NULL.pattern)
"""The spellings that have a meaning in YAML; Hydra knows more of them."""

FUNCTION = re.compile(r"(choice|range|glob|sort|shuffle|interval|tag|extend_list)\(.*\)", re.DOTALL)
"""What Hydra computes values by."""

MISSING_TEXT = "${oc.decode:'\"???\"'}"
"""The text `???`, which alone means in OmegaConf that a value is missing."""

NODES_PREFIX = "cluster.nodes."
CLOSING = {"[": "]", "{": "}", "(": ")"}


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


def key_of(word: str) -> str:
    """Return the key or the group that a word overrides, without a package."""
    return word.lstrip("+~").partition("=")[0].partition("@")[0]


def chosen_cluster(words: Sequence[str]) -> str:
    """Return what the last of the words that choose a cluster chooses, as typed, or ""."""
    return next((w.partition("=")[2] for w in reversed(words) if key_of(w) == "cluster"), "")


def to_hydra(word: str) -> str:
    """Return a word as Hydra is to read it; raise ConfigError for several values.

    `~KEY` sets a key of ours to its default, because Hydra cannot delete one that holds null.
    """
    if key_of(word) in GROUPS:
        return word.lstrip("+")
    if word.startswith("~"):
        name = word[1:].partition("=")[0]
        if not name:
            example = "~KEY takes a key out, such as ~task.args.lr"
            raise ConfigError([Problem(word, "names no key", example)])
        option = option_of(name)
        is_value = option is not None and section_of(option) is None
        return f"++{name}={hydra_value(written_default(option))}" if option and is_value else word
    match = ASSIGNMENT.fullmatch(word)
    if match is None:
        return word
    _, key, text = match.groups()
    if re.search(r"[/@]|hydra\.", key) or ("." not in key and key not in keys_of(Spec)):
        return word  # it may choose a file, or is a setting of Hydra
    if len(split_values(text)) > 1:
        as_list = shlex.quote(f"{key}=[{text}]")
        as_text = shlex.quote(f"{key}={hydra_value(text)}")
        hint = f"-m makes a run of each\nas a list: {as_list}\nas one text: {as_text}"
        raise ConfigError([Problem(word, "these are several values", hint)])
    # There `true` and `false` are texts, too.
    is_text = re.search(r"(^|\.)env(\.|$)|^task\.command$", key) is not None
    return f"++{key}={_written(text, is_text=is_text)}"


def parse(words: Sequence[str]) -> list[Override]:
    """Return what Hydra reads words as, or raise what it raises."""
    return _parse_written([to_hydra(word) for word in words])


def _parse_written(words: Sequence[str]) -> list[Override]:
    # Imported here, because most verbs need no grammar.
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return OverridesParser.create().parse_overrides([*words])


def runs_of_sweep(words: Sequence[str]) -> list[list[str]]:
    """Return the words of each run of a sweep, as they would be typed for it alone."""
    return [list(run) for run in itertools.product(*map(_values_of_word, words))]


def _values_of_word(word: str) -> list[str]:
    match = ASSIGNMENT.fullmatch(word)
    if match is None:
        return [word]
    plus, key, text = match.groups()
    values = split_values(text)
    if FUNCTION.fullmatch(text):
        override = _parse_written([word])[0]
        if override.is_sweep_override():
            values = [*override.sweep_string_iterator()]
    return [f"{plus}{key}={value}" for value in values]


def node_words(words: Sequence[str]) -> tuple[list[str], list[tuple[str, Any]]]:
    """Return the words without those that set something of one node, and these with their values.

    Hydra knows no key with a bracket, such as one of a range, nor a part of a name with a dot.
    """
    others: list[str] = []
    found: list[tuple[str, Any]] = []
    for word in words:
        key, _, text = word.partition("=")
        if word.startswith("~") or not key_of(word).startswith(NODES_PREFIX):
            others.append(word)
        else:
            like = "task.env.X" if re.search(r"\.env(\.|$)", key) else "task.args.x"
            found.append((word, plain(parse([f"{like}={text}"])[0].value())))
    return others, found


def plain(value: Any) -> Any:
    """Return a value of an override as plain data, with all keys as text."""
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value if value is None or isinstance(value, bool) else str(value)


def split_values(text: str, separator: str = ",") -> list[str]:
    """Return the parts of a text between commas; brackets and quotes hold theirs together."""
    parts = [""]
    open_brackets: list[str] = []
    quote = ""
    is_escaped = False
    before = " "
    for char in text:
        if quote:
            if char == quote and not is_escaped:
                quote = ""
            is_escaped = char == "\\" and not is_escaped
        elif char in "'\"" and before in "[{,: \t":
            quote = char
        elif char in CLOSING:
            open_brackets.append(CLOSING[char])
        elif open_brackets and char == open_brackets[-1]:
            open_brackets.pop()
        before = char
        if char == separator and not quote and not open_brackets:
            parts.append("")
        else:
            parts[-1] += char
    return parts


def _written(text: str, *, is_text: bool) -> str:
    """Return a value in Hydra's grammar, with its texts quoted."""
    text = text.strip()
    inner = split_values(text[1:-1]) if text[1:-1].strip() else []
    if text[:1] == "[" and text[-1:] == "]":
        return f"[{','.join(_written(item, is_text=is_text) for item in inner)}]"
    if text[:1] == "{" and text[-1:] == "}":
        pairs = []
        for pair in inner:
            name, *rest = split_values(pair, ":")
            value = _written(":".join(rest), is_text=is_text or name.strip() == "env")
            pairs.append(f"{name.strip()}:{value}" if rest else pair)
        return f"{{{','.join(pairs)}}}"
    is_quoted = len(text) > 1 and text[0] in "'\"" and text[-1] == text[0]
    is_literal = (NULL if is_text else LITERAL).fullmatch(text)
    if not text or is_quoted or is_literal or text[0] in "[{" or FUNCTION.fullmatch(text):
        return text
    return hydra_value(text)


def hydra_value(value: Any) -> str:
    """Return a value in the grammar of Hydra's overrides, each text in quotes."""
    if value is None:
        return "null"
    if isinstance(value, list):
        return f"[{','.join(map(hydra_value, value))}]"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{name}:{hydra_value(item)}' for name, item in value.items())}}}"
    text = scalar_text(value) or str(value)
    if not isinstance(value, str):
        return text
    # Backslashes count only before a quote, the closing one included: there they are doubled.
    escaped = re.sub(r'(\\*)("|\Z)', lambda run: 2 * run[1] + (run[2] and '\\"'), text)
    return f'"{escaped}"'


def as_word(key: str, value: Any) -> str:
    """Return a word that sets a key, as one would type it."""
    is_plain = isinstance(value, str) and re.fullmatch(r"[\w/.:@%+-]+", value)
    return f"{key}={value if is_plain and not LITERAL.fullmatch(value) else hydra_value(value)}"


def escaped(word: str) -> str:
    """Return a text in which OmegaConf finds nothing to replace."""
    # A backslash before `${` makes text of it, and is itself doubled there.
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", word)


def literal(words: Sequence[str]) -> list[str]:
    """Return words as values of the configuration that OmegaConf leaves as they are."""
    return [MISSING_TEXT if word == "???" else escaped(word) for word in words]


def option_of(key: str) -> Any:
    """Return the field of a key of the schema, None for any other key."""
    section: type | None = Spec
    option = None
    for name in key.split("."):
        option = keys_of(section).get(name) if section else None
        if option is None:
            return None
        section = section_of(option)
    return option
