"""Arguments of a program: the words that it gets, from YAML and from the command line.

One argument has one value: what is typed last replaces the same flag wherever it came from.
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

from runner.config.kinds import Problems, read_value, scalar_text
from runner.config.words import (
    ARGS_PREFIX,
    as_word,
    hydra_value,
    key_of,
    leaves,
    literal,
    value_of,
)
from runner.core.errors import ConfigError, Problem
from runner.core.shell import this_program
from runner.core.spec import GROUPS, Spec, Task, keys_of
from runner.core.wire.order import LOCAL_RANK_MACRO

FLAG = re.compile(r"--?[A-Za-z][^\s=]*")
NUMBER = re.compile(r"-\d+|-\d*\.\d+")
"""A negative number, which argparse takes for a value."""

INERT = re.compile(r"""\\.|'[^']*'|"(?:\\.|[^"\\$`])*\"""", re.DOTALL)
"""Quoted text in which a shell replaces nothing."""

NEEDS_SHELL = re.compile(r"\n|&&|\|\||[|&;<>`]|\$\(|(?<!\S)~(?=/|\s|\Z)|\$\{?[A-Za-z_]\w*\}?")
SHELL_WORD = re.compile(
    r"[A-Za-z_]\w*=\S*|(?:\.|cd|eval|exec|export|set|source|ulimit|unset)(?!\S)"
)
"""What a shell alone takes before a program, or in place of one."""


class Argument(NamedTuple):
    """A flag with its values, or a word that belongs to none."""

    key: str  # as below `task.args`; "" of a word alone
    value: Any
    words: list[str]


def take_words(task: dict[str, Any], overrides: Sequence[str], arguments: Sequence[str]) -> None:
    """Put the words after `--` into a composed task, as the arguments that they are.

    A flag among them, or below `task.args` in an override, takes the place of the same flag.

    Raises:
        ConfigError: A word is one of ours, or takes the place of another.
    """
    style = scalar_text(task.get("args_style")) or "argparse"
    _refuse_ours(arguments, style)
    words = literal(arguments)
    after = task.get("args_after") or []
    if not isinstance(after, list):  # what it is made of may be one
        if words:
            message = "no word can follow it unless it is a list"
            raise ConfigError([Problem("task.args_after", message, "such as [a, b]")])
        return
    given = _flags(words, style)
    typed = [key_of(word) for word in overrides]
    replaced = [key.removeprefix(ARGS_PREFIX) for key in typed if key.startswith(ARGS_PREFIX)]
    if "task.args_after" not in typed:
        after = _without(after, {*replaced, *given}, style)
    args = task.get("args") or {}
    known = dict(leaves(args)) if isinstance(args, dict) else {}
    # Else a list would take in the next.
    is_first = not after or str(after[0]) == "--" or FLAG.fullmatch(str(after[0]))
    problems = Problems()
    made = render(problems, given, Task(args_style=style, args_false="omit"))
    if not is_first or not isinstance(args, dict) or made != words or problems:
        # They are passed on as they were typed; values made of `${task.args.NAME}` follow them.
        given = {key: value for key, value in given.items() if key in known}
        after = [*after, *words]
    if given:
        task["args"] = {**known, **given}
    if after != (task.get("args_after") or []):
        task["args_after"] = after


def set_argument(problems: Problems, task: dict[str, Any], word: str) -> None:
    """Put a word about arguments into a composed task.

    null, as `~`, takes those out as well that are below a name.
    """
    name = key_of(word).removeprefix(ARGS_PREFIX.rstrip(".")).removeprefix(".")
    args = task.get("args") or {}
    value = None if word.startswith("~") else value_of(word)
    kept = args
    if isinstance(args, dict):
        args = dict(leaves(args))  # a package of Hydra's may nest them
        kept = {key: item for key, item in args.items() if not f"{key}.".startswith(f"{name}.")}
    elif name or isinstance(value, Mapping):
        problems.report(word, "task.args is no mapping", "~task.args in front takes it out")
        return
    if word.startswith("~"):
        if len(kept) == len(args):
            problems.append(absent(word, key_of(word)))
        args = kept
    elif isinstance(value, Mapping):
        args.update({f"{name}.{below}".lstrip("."): item for below, item in leaves(value)})
    elif name and value is None:
        args = {**kept, name: None}
    elif name:
        args[name] = value
    else:
        args = value
    task["args"] = args


def absent(word: str, key: str) -> Problem:
    hint = f"`{this_program()} config` prints what is there"
    return Problem(word, f"there is no {key} to take out", hint)


def _refuse_ours(arguments: Sequence[str], style: str) -> None:
    """Refuse a word after `--` that sets a key of ours, unless the program takes such words."""
    for word in arguments if style != "hydra" else ():
        key, equals, _ = word.partition("=")
        if equals and (key in GROUPS or key.partition(".")[0] in keys_of(Spec)):
            message = "comes after the program or `--`, so the program would get it"
            hint = f"put it first; for a program that takes it: task.args_after=[{word}]"
            raise ConfigError([Problem(word, message, hint)])


def _arguments(words: Iterable[str], style: str) -> Iterator[Argument]:
    """Yield the flags among words with their values, as far as that can be told."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        key = name.removeprefix("--")
        if style == "hydra":
            yield Argument(name if equals else "", value, [word])
        elif word == "--":  # what follows is no flag of this program
            yield Argument("", "", [word, *rest])
            return
        elif not FLAG.fullmatch(name):
            yield Argument("", "", [word])
        elif equals:
            yield Argument(key, value, [word])
        else:
            values = list(itertools.takewhile(_is_value, rest))
            del rest[: len(values)]
            own: Any = values if len(values) > 1 else "".join(values)
            yield Argument(key, own if values else True, [word, *values])


def _is_value(word: str) -> bool:
    return not word.startswith("-") or NUMBER.fullmatch(word) is not None


def _flags(words: Iterable[str], style: str) -> dict[str, Any]:
    found: dict[str, list[Any]] = {}
    for argument in _arguments(words, style):
        if argument.key:
            found.setdefault(argument.key, []).append(argument.value)
    return {
        key: values[-1] if style == "hydra" or len(values) == 1 else list(map(_as_list, values))
        for key, values in found.items()
    }


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _without(words: Sequence[Any], keys: Collection[str], style: str) -> list[str]:
    """Return words without these flags and their values.

    Raises:
        ConfigError: Which of the words after a flag are its values cannot be told.
    """
    kept: list[str] = []
    found = list(_arguments(map(str, words), style))
    for argument in found:
        key = argument.key
        if not key or (key not in keys and key.removeprefix("no-") not in keys):
            kept += argument.words
        elif argument is found[-1] and isinstance(argument.value, list):
            flag, *values = argument.words
            message = f"{flag} is in task.args_after, too, before {shlex.join(values)}"
            hint = f"~task.args_after leaves out: {shlex.join(map(str, words))}"
            raise ConfigError([Problem(f"{ARGS_PREFIX}{key}", message, hint)])
    return kept


def words_of(problems: Problems, task: Task) -> tuple[str, tuple[str, ...]]:
    target, *own = _program(problems, task)
    words = (
        *own,
        *task.args_before,
        *([f"{task.local_rank_arg}={LOCAL_RANK_MACRO}"] if task.local_rank_arg else []),
        *render(problems, task.args, task, given_later=_flags(task.args_after, task.args_style)),
        *task.args_after,
    )
    if any("\0" in word for word in words):
        problems.report("task.args", "no command line can hold a NUL character")
    if task.local_rank_arg and task.entry != "torchrun":
        message = f"it is for entry torchrun, not for {task.entry}"
        hint = f"choose task.entry=torchrun, which passes {task.local_rank_arg}, or leave it out"
        problems.report("task.local_rank_arg", message, hint)
    return target, words


def drops_false(task: Task) -> str:
    """Return an argument that is false and left out because no key says what becomes of it."""
    if task.args_false or task.args_style != "argparse" or not isinstance(task.args, Mapping):
        return ""
    return next((key for key, value in leaves(task.args) if value is False), "")


def render(
    problems: Problems, args: object, task: Task, given_later: Mapping[str, Any] | None = None
) -> list[str]:
    """Return `task.args` as words of a command line, without what is given later, the same.

    argparse: `lr: 0.1` is `--lr 0.1`, true is the flag alone, null is nothing, a list is a flag
    with several values, a list of lists a flag several times, a mapping dotted flags. equals:
    `--lr=0.1`, `--amp=True`. hydra: `lr=0.1`.
    """
    if args in (None, "", [], {}):
        return []
    if not isinstance(args, Mapping):
        message = f"must be a mapping such as {{lr: 0.1}}, not {args!r}"
        problems.report("task.args", message, "task.args_after takes words as they are")
        return []
    words: list[str] = []
    for key, value in leaves(args):
        if given_later and key in given_later and given_later[key] == value:
            continue
        if task.args_style == "hydra":
            words.append(f"{key}={_in_hydra_grammar(value)}")
            continue
        flag = key if key.startswith("-") else f"--{key}"
        is_repeated = isinstance(value, list) and value and isinstance(value[0], list)
        for occurrence in value if is_repeated else [value]:
            words += _flag(problems, f"{ARGS_PREFIX}{key}", flag, occurrence, task)
    return words


def _flag(problems: Problems, where: str, flag: str, value: object, task: Task) -> list[str]:
    """Return `--key value`, `--key=value` or `--key=-value`, which is a flag to no program."""
    is_equals = task.args_style == "equals"
    if value is None or value in ([], {}):
        return []
    if isinstance(value, bool) and is_equals:
        return [f"{flag}={value}"]
    if isinstance(value, bool) and task.args_false != "value":
        negative = [f"--no-{flag.lstrip('-')}"] if task.args_false == "no" else []
        return [flag] if value else negative
    texts = []
    for item in _as_list(value):
        text = scalar_text(item)
        if text is None:
            hint = "task.args_after takes words"
            if item is None:
                hint = 'quotes make a text of null: "null" or "~"'
            problems.report(where, f"{item!r} has no form as one word", hint)
        texts.append(text or "")
    if is_equals and len(texts) > 1:
        problems.report(where, f"{value!r} has no form as one word", "task.args_after takes words")
    if is_equals or (not isinstance(value, list) and texts[0].startswith("-")):
        return [f"{flag}={texts[0]}"]
    for text in texts:
        if not _is_value(text):
            message = f"a program would take {text!r} in a list for a flag"
            problems.report(where, message, "task.args_after takes words as they are")
    return [flag, *texts]


def _in_hydra_grammar(value: object) -> str:
    if isinstance(value, list):
        return f"[{','.join(map(_in_hydra_grammar, value))}]"
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9_/.:@%+-]+", value):
        return value
    return hydra_value(value)


def _program(problems: Problems, task: Task) -> list[str]:
    where = f"task.{task.kind}"
    value = getattr(task, task.kind)
    if task.kind == "command":
        words = value
        if not isinstance(value, list):
            text = scalar_text(value) or ""
            _refuse_shell_syntax(problems, text.strip())
            try:
                words = shlex.split(text.replace("\\\n", ""))
            except ValueError as error:
                message = f"{value!r} cannot be split into words: {str(error).lower()}"
                problems.report(where, message)
        return list(read_value(problems, where, "texts", words) or [""])
    target = value or ""
    cures = {
        "module.py": f"a file is task.script={target}",
        "script.ipynb": f"jupyter nbconvert --to script {shlex.quote(target)}",
        "script.sh": f"task.command={shlex.quote(f'[bash, {target}]')}",
    }
    if cure := cures.get(f"{task.kind}{PurePath(target).suffix}"):
        problems.report(where, f"{target} is no {task.kind} of Python", cure)
    return [target]


def _refuse_shell_syntax(problems: Problems, text: str) -> None:
    bare = INERT.sub("_", text.replace(LOCAL_RANK_MACRO, "_").replace("\\\n", ""))
    found = SHELL_WORD.match(bare) or NEEDS_SHELL.search(bare)
    if found is None:
        return
    words = ["bash", "-c", *literal([text])]
    hint = shlex.quote(as_word("task.command", words))
    if "\n" in text:
        hint = f"in YAML: command: {json.dumps(words, ensure_ascii=False)}"
    what = "a second line" if found[0] == "\n" else f"'{found[0]}'"
    message = f"{what} needs a shell, and programs start without one"
    problems.report("task.command", message, hint)
