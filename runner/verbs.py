"""Invoke tasks for a fabfile: each verb is one, by `from runner.verbs import *`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

if "fabfile" in sys.modules:  # whose folder Invoke has put first: it may have a `yaml.py`
    sys.path.append(sys.path.pop(0))

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.parser.argument import Argument
from invoke.parser.context import to_flag
from invoke.tasks import Task, task

from runner.cli.parser import VerbParser, split_words
from runner.cli.suggestions import LAUNCH_WORDS, VERB_ALIASES
from runner.cli.verb import Option, Verb, load_verb, print_error, verb_names
from runner.core.errors import ConfigError, Problem, RunnerError
from runner.core.shell import line, this_program

FOR_RUN = "leave it out: it is for tasks with `run`"
INSTEAD_OF_FABRIC = {
    ("-i", "--identity"): "cluster.ssh.key=FILE",
    ("-S", "--ssh-config"): "cluster.ssh.config=FILE",
    ("-t", "--connect-timeout"): "cluster.ssh.connect_timeout=SECONDS",
    ("-T", "--command-timeout"): "`fab exec` has --timeout, other verbs deadlines of their own",
    ("--prompt-for-login-password",): "`ssh-copy-id HOST`: verbs log in with keys",
    ("--prompt-for-passphrase",): "`ssh-add FILE` asks for it once: verbs use your ssh-agent",
    ("--prompt-for-sudo-password",): "leave it out: no verb needs root",
    ("-e", "--echo"): FOR_RUN,
    ("--hide",): FOR_RUN,
    ("-p", "--pty"): FOR_RUN,
    ("-w", "--warn-only"): FOR_RUN,
}
"""What to type instead of flags of `fab` that a verb would ignore; -H and --dry reach its task."""


class VerbTask(Task[Any]):
    """A task whose words are those of `python -m runner VERB`."""

    def get_arguments(self, ignore_unknown_help: bool | None = None) -> list[Argument]:
        """Return the flags of the verb. Invoke asks before it parses, when all tasks are known."""
        if program := _fab():
            flags = {to_flag(n): arg.takes_value for arg in program.core_args() for n in arg.names}
            words, named = program.core.unparsed, program.collection.task_names.items()
            tasks = {name for task_name, aliases in named for name in (task_name, *aliases)}
            verbs = verbs_among({name: program.collection[name] for name in tasks})
            given = [arg for arg in program.core_args() if program.args[arg.name].got_value]
            try:
                if words and words[0] in {*LAUNCH_WORDS}.difference(tasks):
                    hint = f"{this_program()} {line(words[1:])}".rstrip()
                    raise ConfigError([Problem(f"fab {words[0]}", "fab has no launch", hint)])
                if verb := next((verbs[word] for word in words if word in verbs), ""):
                    _refuse_ignored(verb, {to_flag(n) for arg in given for n in arg.names})
                words[:] = words_as_flags(words, tasks, verbs, flags)
            except RunnerError as error:
                raise Exit(code=print_error(error)) from error
        return super().get_arguments(ignore_unknown_help)


def make_task(verb: Verb) -> Task[Any]:
    """Make an Invoke task of a verb, with the same words, messages and exit codes."""

    def run_verb(context: Context, **values: Any) -> None:
        given = {option.name: option.default for option in verb.options} | values
        try:
            _refuse_flags_of_fabric(verb, context)
        except RunnerError as error:
            raise Exit(code=print_error(error)) from error
        if code := verb.run(given, _words_after_separator):
            raise Exit(code=code)

    parameters = [inspect.Parameter("context", inspect.Parameter.POSITIONAL_ONLY)]
    parameters += map(_parameter, verb.options)
    run_verb.__name__, run_verb.__doc__ = verb.body.__name__, verb.help
    run_verb.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    made: Task[Any] = task(
        name=verb.name,
        klass=VerbTask,
        auto_shortflags=False,
        iterable=[option.name for option in verb.options if isinstance(option.default, tuple)],
        help={option.name: option.help for option in verb.options},
    )(run_verb)
    return made


def _parameter(option: Option) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    if option.default is None:
        return inspect.Parameter(option.name, kind)
    default = None if isinstance(option.default, tuple) else option.default
    return inspect.Parameter(option.name, kind, default=default)


def _refuse_flags_of_fabric(verb: Verb, context: Context) -> None:
    """Refuse flags of `fab` that a verb, which connects by itself, would ignore.

    With -H, Fabric would call it once for each of these hosts, each time on the whole cluster.
    """
    if host := getattr(context, "original_host", None):
        hint = f"fab {verb.name} --cluster NAME cluster.only=[NODE,...], by the nodes' names there"
        message = f"-H is not for {verb.name}, which connects to the nodes of a cluster by itself"
        raise ConfigError([Problem(f"fab -H {host}", message, hint)])
    if context.config.run.dry:
        has_dry_run = any(option.name == "dry_run" for option in verb.options)
        hint = f"fab {verb.name} --dry-run shows what it would do" if has_dry_run else ""
        message = f"{verb.name} would be carried out all the same: --dry is for tasks with `run`"
        raise ConfigError([Problem("fab --dry", message, hint or "leave it out")])


def _refuse_ignored(verb: str, given: Collection[str]) -> None:
    """Refuse flags of `fab` that a verb, which connects by itself, would ignore."""
    for names, hint in INSTEAD_OF_FABRIC.items():
        if flag := next((name for name in names if name in given), ""):
            message = f"{verb} would ignore it, and connects by itself"
            raise ConfigError([Problem(f"fab {flag}", message, hint)])


def verbs_among(tasks: Mapping[str, Task[Any]]) -> dict[str, str]:
    """Return the verbs by what is typed for them, of a project whose tasks these are, by name.

    A word that names a task of the project means that; an alias of Invoke's would replace it.
    """
    verbs = {name: each.name for name, each in tasks.items() if isinstance(each, VerbTask)}
    aliases = {word: name for word, name in VERB_ALIASES.items() if word not in tasks}
    return verbs | {word: name for word, name in aliases.items() if name in verbs}


def words_as_flags(
    words: Sequence[str],
    tasks: Collection[str],
    verbs: Mapping[str, str],
    fab_flags: Mapping[str, bool],
) -> list[str]:
    """Return the words of `fab` with those of verbs as flags, the only form that Invoke parses.

    `verbs` are those of `verbs_among`; `fab_flags` are Fabric's own, and whether each takes a
    value. Raises ConfigError.
    """
    result: list[str] = []
    remaining = list(words)
    while remaining:
        typed = remaining.pop(0)
        result.append(typed if typed in tasks else verbs.get(typed, typed))
        if typed in verbs:
            verb = load_verb(verbs[typed])
            own, of_fab = _take_words(verb, remaining, {*tasks, *verbs}, fab_flags)
            _refuse_ignored(verb.name, {word.partition("=")[0] for word in of_fab})
            is_help = not {"--help", "-h"}.isdisjoint(of_fab)
            result += [*of_fab, *(own if is_help else _flags(verb, own))]
    return result


def _take_words(
    verb: Verb, words: list[str], tasks: Collection[str], fab_flags: Mapping[str, bool]
) -> tuple[list[str], list[str]]:
    """Remove the words up to the next task; return those of the verb, and flags of Fabric."""
    takes_value = {option.flag: option.default is not False for option in verb.options}
    own: list[str] = []
    of_fab: list[str] = []
    needs_subject = any(option.default is None for option in verb.options)
    while words and (needs_subject or words[0] not in tasks):
        word = words.pop(0)
        flag, has_value, _ = word.partition("=")
        is_flag = word.startswith("-")
        is_own = not is_flag or flag in takes_value or flag not in fab_flags
        (own if is_own else of_fab).append(word)
        needs_subject &= is_flag
        if is_flag and not has_value and words:
            if takes_value.get(flag, False):
                own.append(words.pop(0))
            elif not is_own and fab_flags[flag]:
                of_fab.append(words.pop(0))
    return own, of_fab


def _flags(verb: Verb, words: Sequence[str]) -> list[str]:
    """Return the words of a verb, read as `python -m runner` does, as flags with values."""
    values = VerbParser(verb).values(words)
    flags: list[str] = []
    for option in verb.options:
        value = values[option.name]
        if value is True:
            flags.append(option.flag)
        elif value != option.default:
            each = [value] if isinstance(value, str) else value
            flags += [f"{option.flag}={text}" for text in each]
    return flags


def _fab() -> Any:
    """Return Fabric's program, if this is `fab` and it has read its own flags."""
    program = getattr(sys.modules.get("fabric.main"), "program", None)
    return program if getattr(program, "core", None) else None


def _take_words_after_separator() -> list[str]:
    """Keep the words of `fab exec -- WORDS` for our verb: Fabric would run them on its -H hosts."""
    before, words = split_words(sys.argv[1:])
    program = _fab()
    if program is None or not words or "exec" not in before:
        return []
    program.core.remainder = ""
    return words


_words_after_separator = _take_words_after_separator()
TASKS = [make_task(load_verb(name)) for name in verb_names()]
globals().update({each.__name__: each for each in TASKS})
__all__ = [each.__name__ for each in TASKS]
