"""Arguments of a program: the words that it gets, from YAML and from the command line.

One argument has one value: what is typed last replaces the same flag wherever it came from.
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from runner.config.kinds import Problems, read_value, scalar_text
from runner.config.words import escaped, hydra_value, key_of, literal
from runner.core.errors import ConfigError, Problem
from runner.core.planning.launch_command import LOCAL_RANK_MACRO
from runner.core.spec import GROUPS, Spec, Task, keys_of

FLAG = re.compile(r"--?[A-Za-z][^\s=]*")
NUMBER = re.compile(r"-\d+|-\d*\.\d+")
"""A negative number, which argparse takes for a value."""

ARGS_PREFIX = "task.args."
QUOTED = re.compile(r"""\\.|'[^']*'|"(?:\\.|[^"\\])*\"""", re.DOTALL)
VARIABLE = re.compile(r"\$\{?[A-Za-z_]\w*\}?")
IN_DOUBLE_QUOTES = re.compile(r"`|\$\(|" + VARIABLE.pattern)
NEEDS_SHELL = re.compile(r"\n|&&|\|\||[|&;<>]|(?<!\S)~(?=/|\s|\Z)|" + IN_DOUBLE_QUOTES.pattern)
SHELL_WORD = re.compile(
    r"[A-Za-z_]\w*=\S*|(?:\.|cd|eval|exec|export|set|source|ulimit|umask|unset)(?!\S)"
)
"""What a shell alone takes before a program, or in place of one."""


def take_words(config: DictConfig, overrides: Sequence[str], arguments: Sequence[str]) -> None:
    """Put the words after `--` into a composed configuration, as the arguments that they are.

    A flag among them, or below `task.args` in an override, takes the place of the same flag.

    Raises:
        ConfigError: A word is one of ours, or is set by an override, too.
    """
    task: Any = OmegaConf.to_container(config.task, resolve=False)
    style = scalar_text(task.get("args_style")) or "argparse"
    _refuse_ours(arguments, style)
    typed = [key_of(word) for word in overrides]
    if arguments and any(key_of(word) == "task.args_after" for word in overrides if "=" in word):
        message = "words after `--` are arguments, too"
        raise ConfigError([Problem("task.args_after", message, "give them in one place")])
    set_now = [key[len(ARGS_PREFIX) :] for key in typed if key.startswith(ARGS_PREFIX)]
    flags = [*set_now, *_flag_values(arguments, style)]
    after = task.get("args_after") or []
    if flags and "task.args_after" not in typed and "${" not in after:
        words = after if isinstance(after, list) else _split(after)
        after = without_flags(words, flags, style)
    args = task.get("args")
    found = parse_arguments(arguments, style)
    is_first = not after or FLAG.fullmatch(str(after[0]))  # else a list would take in the next
    if found is not None and is_first and (args is None or isinstance(args, dict)):
        args = _merged(args or {}, found)
    elif arguments:
        # They are passed on as they were typed; values made of `${task.args.NAME}` follow them.
        values = _flag_values(arguments, style)
        for name in values.keys() & {key for key, _ in _leaves(args or {})}:
            args = _merged(args, _literal(_nest(name, values[name])))
        if isinstance(after, str):  # of an interpolation, which stays as it is
            after = f"{after} {shlex.join(map(escaped, arguments))}"
        else:
            after = [*after, *literal(arguments)]
    if arguments:
        OmegaConf.update(config, "task.args", args, force_add=True, merge=False)
    if after != (task.get("args_after") or []):
        OmegaConf.update(config, "task.args_after", after, force_add=True, merge=False)


def _refuse_ours(arguments: Sequence[str], style: str) -> None:
    """Refuse a word after `--` that sets a key of ours, unless the program takes such words."""
    if style == "hydra":
        return
    for word in arguments:
        key, equals, _ = word.partition("=")
        is_ours = key in GROUPS or key.partition(".")[0] in keys_of(Spec)
        if equals and is_ours:
            message = "comes after the program or `--`, so the program would get it"
            hint = f"put it first; for a program that takes it: task.args_after=[{word}]"
            raise ConfigError([Problem(word, message, hint)])


def parse_arguments(words: Sequence[str], style: str) -> dict[str, Any] | None:
    """Return words as `task.args` has them; None unless these give the same words again."""
    nested: dict[str, Any] = {}
    for key, value in _flag_values(words, style).items():
        nested = _merged(nested, _nest(key, value))
    problems = Problems()
    task = Task(args_style=style, args_false="omit")
    is_same = style != "raw" and render(problems, nested, task) == list(words)
    return _literal(nested) if is_same and not problems else None


def _flag_values(words: Sequence[str], style: str) -> dict[str, Any]:
    """Return what each flag among words is set to, as far as that can be told."""
    if style == "hydra":
        return dict(word.split("=", maxsplit=1) for word in words if "=" in word)
    values: dict[str, Any] = {}
    rest = list(words)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if not FLAG.fullmatch(name):
            continue
        own = [value] if equals else list(itertools.takewhile(_is_value, rest))
        if not equals:
            del rest[: len(own)]
        key = name.removeprefix("--")
        found: Any = own if len(own) > 1 else "".join(own)
        if not own:
            found = True
        if key in values:
            earlier = values[key] if _is_repeated(values[key]) else [_as_list(values[key])]
            found = [*earlier, _as_list(found)]
        values[key] = found
    return values


def _is_value(word: str) -> bool:
    return not word.startswith("-") or NUMBER.fullmatch(word) is not None


def _is_repeated(value: object) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], list)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _nest(key: str, value: Any) -> dict[str, Any]:
    for name in reversed(key.split(".")):
        value = {name: value}
    return dict(value)


def _literal(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _literal(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_literal(item) for item in value]
    return literal([value])[0] if isinstance(value, str) else value


def _merged(args: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(args)
    for name, value in later.items():
        below = merged.get(name)
        both = isinstance(below, Mapping) and isinstance(value, Mapping)
        merged[name] = _merged(below, value) if both and below is not None else value
    return merged


def without_flags(words: Sequence[Any], names: Iterable[str], style: str) -> list[Any]:
    """Return words without these flags and their values.

    Raises:
        ConfigError: Which of the words after a flag are its values cannot be told.
    """
    kept = [str(word) for word in words]
    for name in names:
        flags = [f"--{name}", f"--no-{name}"]
        if style == "hydra" or name.startswith("-"):
            flags = [name]
        for flag in flags:
            kept = [word for word in kept if not word.startswith(f"{flag}=")]
            while flag in kept:
                start = kept.index(flag)
                values = list(itertools.takewhile(_is_value, kept[start + 1 :]))
                end = start + 1 + len(values)
                if len(values) > 1 and end == len(kept):
                    message = f"{flag} is in task.args_after, too, before {shlex.join(values)}"
                    hint = f"~task.args_after leaves out: {shlex.join(kept)}"
                    raise ConfigError([Problem(f"{ARGS_PREFIX}{name}", message, hint)])
                del kept[start:end]
    return kept


def words_of(problems: Problems, task: Task) -> tuple[str, tuple[str, ...]]:
    """Return the program of a task, and the words that it gets."""
    for key in ("command", "args", "args_before", "args_after"):
        value = getattr(task, key)
        if isinstance(value, str):
            _refuse_shell_syntax(problems, key, value, expands=task.args_expand)
    target, *own = _program(problems, task)
    after = _raw_words(problems, "task.args_after", task.args_after)
    words = (
        *own,
        *_raw_words(problems, "task.args_before", task.args_before),
        *_local_rank_words(problems, task),
        *render(problems, task.args, task, given_later=_flag_values(after, task.args_style)),
        *after,
    )
    return target, words


def drops_false(task: Task) -> str:
    """Return an argument that is false and left out because no key says what becomes of it."""
    if task.args_false or task.args_style != "argparse" or not isinstance(task.args, Mapping):
        return ""
    return next((key for key, value in _leaves(task.args) if value is False), "")


def _leaves(args: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each argument with its dotted name."""
    for name, value in args.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def render(
    problems: Problems, args: object, task: Task, given_later: Collection[str] = ()
) -> list[str]:
    """Return `task.args` as words of a command line, without what is given later.

    argparse: `lr: 0.1` is `--lr 0.1`, true is the flag alone, null is nothing, a list is a flag
    with several values, a list of lists a flag several times, a mapping dotted flags. equals:
    `--lr=0.1`, `--amp=True`. hydra: `lr=0.1`. raw: a list of words, or a text that is split as a
    shell does.
    """
    if args in (None, "", [], {}):
        return []
    style = task.args_style
    if (style == "raw") == isinstance(args, Mapping):
        hint = "raw takes a list of words, the others a mapping"
        problems.report("task.args", f"is {args!r}", hint)
        return []
    if not isinstance(args, Mapping):
        return _raw_words(problems, "task.args", args)
    words: list[str] = []
    for key, value in _leaves(args):
        if key in given_later:
            continue
        where = f"{ARGS_PREFIX}{key}"
        if not re.fullmatch(r"[^\s=]+", key):
            problems.report(where, f"{key!r} is no name of an argument")
        if style == "hydra":
            words.append(f"{key}={_in_hydra_grammar(value)}")
            continue
        flag = key if key.startswith("-") else f"--{key}"
        occurrences = value if _is_repeated(value) else [value]
        for occurrence in occurrences:
            if style == "equals":
                words += _assignment(problems, where, flag, occurrence)
            else:
                words += _flag(problems, where, flag, occurrence, task.args_false)
    if any("\0" in word for word in words):
        problems.report("task.args", "no command line can hold a NUL character")
    return words


def _flag(problems: Problems, where: str, flag: str, value: object, of_false: str) -> list[str]:
    """Return `--key value`, or `--key=-value`, which argparse does not take for a flag."""
    if value is None or value in ([], {}):
        return []
    if isinstance(value, bool):
        if of_false == "value":
            return [flag, "true" if value else "false"]
        if value:
            return [flag]
        return [f"--no-{flag.lstrip('-')}"] if of_false == "no" else []
    if isinstance(value, list):
        return [flag, *(_list_item(problems, where, item) for item in value)]
    text = _word(problems, where, value)
    return [f"{flag}={text}"] if text.startswith("-") else [flag, text]


def _list_item(problems: Problems, where: str, value: object) -> str:
    """Return one of several values of a flag."""
    text = _word(problems, where, value)
    if text.startswith("-") and not NUMBER.fullmatch(text):
        message = f"a program would take {text!r} in a list for a flag"
        problems.report(where, message, "task.args_after takes words as they are")
    return text


def _assignment(problems: Problems, where: str, flag: str, value: object) -> list[str]:
    """Return `--key=value`, with bools as Python writes them."""
    if value is None or value in ([], {}):
        return []
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    text = str(value) if isinstance(value, bool) else _word(problems, where, value)
    return [f"{flag}={text}"]


def _in_hydra_grammar(value: object) -> str:
    """Return a value as one would type it for a program that takes Hydra's overrides."""
    if isinstance(value, list):
        return f"[{','.join(map(_in_hydra_grammar, value))}]"
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9_/.:@%+-]+", value):
        return value
    return hydra_value(value)


def _word(problems: Problems, where: str, value: object) -> str:
    text = scalar_text(value)
    if text is None:
        hint = "task.args_after takes words"
        if value is None:
            hint = 'quotes make a text of null: "null" or "~"'
        problems.report(where, f"{value!r} has no form as one word", hint)
    return text or ""


def _raw_words(problems: Problems, where: str, value: object) -> list[str]:
    """Return the words of a list as they are, or of a text that is split as a shell does."""
    if not isinstance(value, (list, tuple)):
        try:
            return _split(scalar_text(value) or "")
        except ValueError as error:
            message = f"{value!r} cannot be split into words: {str(error).lower()}"
            problems.report(where, message)
            return []
    return [_word(problems, f"{where}.{n}", item) for n, item in enumerate(value)]


def _split(text: str) -> list[str]:
    return shlex.split(text.replace("\\\n", ""))


def _program(problems: Problems, task: Task) -> list[str]:
    """Return the words of the program."""
    where = f"task.{task.kind}"
    value = getattr(task, task.kind)
    if task.kind == "command":
        words = value if isinstance(value, list) else _raw_words(problems, where, value)
        return list(read_value(problems, where, "texts", words) or [""])
    target = value or ""
    is_name = all(part.isidentifier() for part in target.split("."))
    if task.kind == "module" and (not is_name or target.endswith(".py")):
        message = f"{target!r} is no module name such as package.train"
        problems.report(where, message, f"a file is task.script={target}")
    if task.kind == "script" and target.endswith(".ipynb"):
        hint = f"jupyter nbconvert --to script {shlex.quote(target)} makes a script of it"
        problems.report(where, f"{target} is a notebook, which Python cannot run", hint)
    if task.kind == "script" and target.endswith((".sh", ".bash")):
        hint = f"task.command={shlex.quote(f'[bash, {target}]')}"
        problems.report(where, f"{target} is a shell script, which Python cannot run", hint)
    return [target]


def _refuse_shell_syntax(problems: Problems, key: str, text: str, *, expands: bool) -> None:
    """Report what only a shell understands; `expands`: variables are replaced without one."""

    def seen_by_shell(quoted: re.Match[str]) -> str:
        in_double = re.sub(r"\\.", "", quoted[0]) if quoted[0].startswith('"') else ""
        return "_" + "".join(IN_DOUBLE_QUOTES.findall(in_double))

    text = text.strip()
    bare = text.replace(LOCAL_RANK_MACRO, "_").replace("\\\n", "")
    bare = QUOTED.sub(seen_by_shell, bare)
    if expands:
        bare = VARIABLE.sub("_", bare)
    if key == "command":
        found = SHELL_WORD.match(bare) or NEEDS_SHELL.search(bare)
        typed_text = literal([text])[0]
        hint = f"in YAML: command: [bash, -c, {json.dumps(typed_text, ensure_ascii=False)}]"
        if "\n" not in text:
            typed = shlex.quote(f"[bash, -c, {hydra_value(typed_text)}]")
            hint = f"task.command={typed}\n{hint}"
    else:
        found = NEEDS_SHELL.search(bare.replace("\n", " "))
        hint = f"a list passes words as they are, such as task.{key}=[a, b]"
    if found is not None:
        what = "a second line" if found[0] == "\n" else f"'{found[0]}'"
        message = f"{what} needs a shell, and programs start without one"
        problems.report(f"task.{key}", message, hint)


def _local_rank_words(problems: Problems, task: Task) -> list[str]:
    """Return the argument that passes the local rank to an old script, if it needs one."""
    where = "task.local_rank_arg"
    flag = task.local_rank_arg
    if not flag:
        return []
    if not re.fullmatch(r"--?[A-Za-z][\w-]*", flag):
        problems.report(where, f"{flag!r} is no flag", "such as --local_rank, or --local-rank")
    if task.entry != "torchrun":
        message = f"it is for entry torchrun, not for {task.entry}"
        hint = f"choose task.entry=torchrun, which passes {flag}, or leave it out"
        problems.report(where, message, hint)
    return [f"{flag}={LOCAL_RANK_MACRO}"]
