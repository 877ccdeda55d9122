"""Words of a command line: what they override, and the values that they set.

Lists and mappings are written as for Hydra. Texts reach the run as they were written: `3.10`,
`0123`, `2024_11_05` and `off` are texts.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.config.kinds import scalar_text
from runner.core.errors import ConfigError, Problem
from runner.core.spec import GROUPS, Spec, keys_of, section_of

ASSIGNMENT = re.compile(r"(\+{0,2})([^\s=]+?)=(.*)", re.DOTALL)
NULL = re.compile("null|Null|NULL")
LITERAL = re.compile("true|True|TRUE|false|False|FALSE|" + NULL.pattern)
"""The spellings that have a meaning in YAML."""

TOKEN = re.compile(
    r"""(?<![^\[{,: \t])(?:'(?:\\.|[^'\\])*(?:'|\\?\Z)|"(?:\\.|[^"\\])*(?:"|\\?\Z))|.""", re.DOTALL
)
"""A text in quotes, which begins where a value may, or one character."""

QUOTED = re.compile(r"""(['"])((?:\\.|(?!\1)[^\\])*)\1""", re.DOTALL)

MISSING_TEXT = "${oc.decode:'\"???\"'}"
"""The text `???`, which alone means in OmegaConf that a value is missing."""

CONTACT_KEYS = (
    "cluster.scheduler",
    "cluster.transport",
    "cluster.nodes",
    "cluster.only",
    "cluster.exclude",
    "cluster.ssh",
    "cluster.python",
    "cluster.host_python",
    "cluster.project",
    "cluster.workdir",
    "run_id",
    "run_dir",
    "rerun",
    "ui",
    "console_ranks",
    "grace_s",
    "lost_s",
    "disconnect_s",
    "pull_outputs",
    "progress.pattern",
)
"""What reaches the hosts of a run, and says how it is stopped and shown."""

NODE_ENV = re.compile(r"cluster\.nodes\..+\.env(\..*)?")

NODES_PREFIX = "cluster.nodes."
ARGS_PREFIX = "task.args."
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


def path_of(key: str) -> tuple[str, ...]:
    """Return the parts of a key; the name of an argument is one, whatever dots it has."""
    if key.startswith(ARGS_PREFIX):
        return (*ARGS_PREFIX.split(".")[:2], key.removeprefix(ARGS_PREFIX))
    return tuple(key.split("."))


def chosen_cluster(words: Sequence[str]) -> str:
    """Return what the last of the words that choose a cluster chooses, as typed, or ""."""
    return next((w.partition("=")[2] for w in reversed(words) if key_of(w) == "cluster"), "")


def is_among(key: str, keys: Collection[str]) -> bool:
    """Return whether a key is one of these, leads to one or stands below one."""
    is_near = any(
        f"{wanted}.".startswith(f"{key}.") or f"{key}.".startswith(f"{wanted}.") for wanted in keys
    )
    return is_near and not NODE_ENV.fullmatch(key)


def is_ignored(word: str, taken: Collection[str]) -> bool:
    """Return whether a word sets a key of ours that is none of these, and above or below none."""
    key = key_of(word)
    return re.split(r"[./]", key)[0] in keys_of(Spec) and not is_among(key, taken)


def contact_words(typed: Sequence[str], cluster: str) -> tuple[str, ...]:
    """Return those of a launch's words by which a verb reaches the same hosts.

    Task and environment of the launch are not among them.
    """
    kept = [
        word
        for word in typed
        if key_of(word) not in ("cluster", "run_id") and not is_ignored(word, CONTACT_KEYS)
    ]
    chosen = chosen_cluster(typed)
    repeats_record = any(key_of(word) == "rerun" for word in kept)
    flags = () if repeats_record and not chosen else ("--cluster", chosen or cluster)
    return (*flags, *kept)


def is_value(word: str) -> bool:
    """Return whether a word sets a value or takes one out; by the others, Hydra chooses files."""
    key = word.lstrip("+~").partition("=")[0]
    if key_of(word) in GROUPS or re.search(r"[/@]", key):
        return False
    is_ours = "." in key or key in keys_of(Spec)
    return is_ours and (word.startswith("~") or ASSIGNMENT.fullmatch(word) is not None)


def value_of(word: str) -> Any:
    """Return the value that a word sets as plain data: all but true, false and null is text.

    Raises:
        ConfigError: There are several, or they cannot be read.
    """
    key, _, text = word.partition("=")
    if len(split_values(text)) > 1:
        as_list = shlex.quote(f"{key}=[{text}]")
        as_text = shlex.quote(f"{key}={hydra_value(text)}")
        hint = f"-m makes a run of each\nas a list: {as_list}\nas one text: {as_text}"
        raise ConfigError([Problem(word, "these are several values", hint)])
    # There `true` and `false` are texts, too.
    is_text = re.search(r"(^|\.)env(\.|$)|^task\.command$", key_of(word)) is not None
    try:
        return _read(text, is_text=is_text)
    except ValueError as error:
        hint = """quote a text with brackets, and the whole for the shell: 'KEY=["[a", b]'"""
        raise ConfigError([Problem(word, str(error), hint)]) from error


def _read(text: str, *, is_text: bool) -> Any:
    text = text.strip()
    if quoted := QUOTED.fullmatch(text):
        # Backslashes count only before a quote, the closing one included.
        escapes = rf"(\\+)({quoted[1]}|\Z)"
        return re.sub(escapes, lambda run: "\\" * (len(run[1]) // 2) + run[2], quoted[2])
    if NULL.fullmatch(text):
        return None
    if not is_text and LITERAL.fullmatch(text):
        return text.lower() == "true"
    if not text.startswith(("[", "{")):
        return text
    if len(text) == 1 or text[-1] != CLOSING[text[0]]:
        raise ValueError("its brackets do not match")
    items = split_values(text[1:-1]) if text[1:-1].strip() else []
    if not all(item.strip() for item in items):
        raise ValueError("an item is missing; '' is an empty text")
    if text[0] == "[":
        return [_read(item, is_text=is_text) for item in items]
    mapping: dict[str, Any] = {}
    for item in items:
        name, *rest = split_values(item, ":")
        name = name.strip(" '\"")
        if not rest:
            raise ValueError(f"{item.strip()} is no NAME:VALUE")
        mapping[name] = _read(":".join(rest), is_text=is_text or name == "env")
    return mapping


def runs_of_sweep(words: Sequence[str]) -> list[list[str]]:
    return [list(run) for run in itertools.product(*map(_values_of_word, words))]


def _values_of_word(word: str) -> list[str]:
    match = ASSIGNMENT.fullmatch(word)
    if match is None:
        return [word]
    plus, key, text = match.groups()
    return [f"{plus}{key}={value}" for value in split_values(text)]


def leaves(mapping: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value below a mapping with its dotted name."""
    for name, value in mapping.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def plain(value: Any) -> Any:
    """Return a value as plain data, with all keys as text."""
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value if value is None or isinstance(value, bool) else str(value)


def put(tree: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Set a value in plain data; a mapping is merged into one that is there."""
    *above, last = path
    for name in above:
        if not isinstance(tree.get(name), dict):
            tree[name] = {}
        tree = tree[name]
    if isinstance(value, Mapping) and isinstance(tree.get(last), dict):
        for name, item in value.items():
            put(tree[last], [name], item)
    else:
        tree[last] = value


def split_values(text: str, separator: str = ",") -> list[str]:
    """Return the parts of a text between commas; brackets and quotes hold theirs together."""
    parts = [""]
    open_brackets: list[str] = []
    for token in TOKEN.findall(text):
        if token in CLOSING:
            open_brackets.append(CLOSING[token])
        elif open_brackets and token == open_brackets[-1]:
            open_brackets.pop()
        if token == separator and not open_brackets:
            parts.append("")
        else:
            parts[-1] += token
    return parts


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
