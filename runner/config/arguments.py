"""Program arguments: `task.args` rendered as words of a command line."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from runner.config.validation import Validator, scalar_text

ARGS_STYLES = ("argparse", "hydra", "raw")
NESTED_HINT = "task.args_style=hydra takes nested values"
HYDRA_LITERALS = ("true", "false", "null", "nan", "inf")


def render_arguments(validator: Validator, args: object, style: object) -> list[str]:
    """Return `task.args` as words of a command line.

    argparse: `lr: 0.1` is `--lr 0.1`, true is the flag alone, false and null are nothing, a list is
    a flag with several values. hydra: `lr=0.1`, `model.depth=3`. raw: a list of words, or a text
    that is split as a shell does.
    """
    style = validator.choice("task.args_style", style, ARGS_STYLES)
    if args in (None, "", [], {}):
        return []
    if (style == "raw") == isinstance(args, Mapping):
        validator.add(
            "task.args", f"is {args!r}", "raw takes a list of words, the others a mapping"
        )
        return []
    if isinstance(args, Mapping):
        render = _render_overrides if style == "hydra" else _render_flag
        words = [word for key, value in args.items() for word in render(validator, key, value)]
    else:
        items = args if isinstance(args, list) else split_words(validator, "task.args", args)
        words = [
            _scalar_word(validator, f"task.args.{index}", word) for index, word in enumerate(items)
        ]
    if any("\0" in word for word in words):
        validator.add("task.args", "no command line can hold a NUL character")
    return words


def split_words(validator: Validator, where: str, value: object) -> list[str]:
    """Split a text into words as a POSIX shell does."""
    try:
        return shlex.split(scalar_text(value) or "")
    except ValueError as error:
        validator.add(where, f"{value!r} cannot be split into words: {str(error).lower()}")
        return []


def _scalar_word(validator: Validator, where: str, value: object) -> str:
    text = scalar_text(value)
    if text is None:
        validator.add(where, f"{value!r} has no form as one word", NESTED_HINT)
    return text or ""


def _render_flag(validator: Validator, key: str, value: object) -> list[str]:
    """Return `--key value`, or `--key=-value`, which argparse does not take for a flag."""
    where = f"task.args.{key}"
    if not re.fullmatch(r"[^\s=]+", key):
        validator.add(where, f"{key!r} is no name for a flag")
    flag = key if key.startswith("-") else f"--{key}"
    if value is None or value is False or value == []:
        return []
    if value is True:
        return [flag]
    if isinstance(value, list):
        return [flag, *(_list_item(validator, where, item) for item in value)]
    text = _scalar_word(validator, where, value)
    return [f"{flag}={text}"] if text.startswith("-") else [flag, text]


def _list_item(validator: Validator, where: str, value: object) -> str:
    """Return one of several values of a flag: argparse knows -0.00001 as a number, not -1e-05."""
    text = _scalar_word(validator, where, value)
    if isinstance(value, float) and math.isfinite(value) and value < 0:
        text = format(Decimal(text), "f")
    if text.startswith("-") and not re.fullmatch(r"-\d+|-\d*\.\d+", text):
        message = f"a program would take {text!r} in a list for a flag"
        validator.add(where, message, "task.args_style=raw passes words as they are")
    return text


def _render_overrides(validator: Validator, key: str, value: object) -> Iterator[str]:
    """Yield `key=value` for every leaf, in the grammar of Hydra's overrides."""
    if isinstance(value, Mapping) and value:
        for inner, item in value.items():
            yield from _render_overrides(validator, f"{key}.{inner}", item)
        return
    if not re.fullmatch(r"[+~]{0,2}[\w$@/.:-]+", key):
        validator.add(f"task.args.{key}", f"{key!r} is no key that Hydra takes")
    yield f"{key}={hydra_value(value)}"


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
