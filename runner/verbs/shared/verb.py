"""Verbs: commands of Click whose bare words are `KEY=VALUE`, or the verb's one subject."""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from runner.config.words import is_override
from runner.core.errors import SIGNAL_EXIT_BASE, ConfigError, Problem, RunnerError
from runner.core.wire.codec import encode
from runner.core.wire.paths import is_run_id
from runner.ui.output import report_fault, show
from runner.ui.problems import render_problems
from runner.verbs.shared.selection import Selection

UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
Body = Callable[..., int]


class Verb(click.Command):
    """A command about a cluster or its runs.

    With a parameter `selection` its function takes the flags of one, and `KEY=VALUE`; with
    `words`, what comes after `--`.
    """

    def __init__(
        self,
        *,
        callback: Body,
        params: list[click.Parameter],
        subject: str,
        keys: Sequence[str] | None,
        examples: Mapping[str, str],
        **attributes: Any,
    ) -> None:
        self.body = callback
        self.subject = subject
        self.keys = keys
        self.examples = examples
        parameters = inspect.signature(callback).parameters
        self.selects_hosts = "selection" in parameters
        self.takes_words = "words" in parameters
        bare_words = [f"[{subject.upper()}]"] if subject else []
        if "files" in parameters:
            bare_words.append("[FILES]...")
        if self.selects_hosts:
            bare_words.append("[KEY=VALUE]...")
            params += SELECTION_OPTIONS
        words = click.Argument(
            ["words"],
            nargs=-1,
            metavar=" ".join(bare_words),
            type=click.UNPROCESSED,
            shell_complete=_complete,
        )
        super().__init__(
            params=[*params, words],
            options_metavar="[FLAGS]",
            context_settings=CONTEXT,
            **attributes,
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = ctx  # a flag without its value has none
            raise

    def invoke(self, ctx: click.Context) -> int:
        values = dict(ctx.params)
        settings = [*values.pop("set_", ())]
        for word in values.pop("words"):
            # A command of the shell may begin by setting a variable.
            is_line = self.subject == "command" and re.match(r"\w+=.*\s", word) is not None
            if self.selects_hosts and is_override(word) and not is_line:
                settings.append(word)
            else:
                self._take_subject(ctx, word, values)
        if self.selects_hosts:
            if cluster := values.pop("cluster"):
                settings.insert(0, f"cluster={cluster}")
            folders = tuple(values.pop("config_dir"))
            selection = Selection(tuple(settings), folders, str(self.name), self.keys)
            selection.refuse_ignored_words()
            values["selection"] = selection
        if self.takes_words:
            values["words"] = ctx.obj or ()
        elif ctx.obj:
            raise click.UsageError("it takes no words after `--`", ctx)
        return int(self.body(**values))

    def _take_subject(self, ctx: click.Context, word: str, values: dict[str, Any]) -> None:
        if not self.subject:
            raise click.BadArgumentUsage(f"it takes flags alone, not {word!r}", ctx)
        name = "files" if "files" in values and not is_run_id(word) else self.subject
        given = values[name]
        if given and not isinstance(given, tuple):
            hint = "; a command of several words comes after `--`" if self.takes_words else ""
            message = f"{word!r} is one word too many: --{name} is {given!r}{hint}"
            raise click.UsageError(message, ctx)
        values[name] = (*given, word) if isinstance(given, tuple) else word

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_help_text(ctx, formatter)
        if self.examples:
            formatter.write_paragraph()
            with formatter.indentation():
                program = ctx.find_root().command_path
                lines = [(f"{program} {line}", text) for line, text in self.examples.items()]
                formatter.write_dl(lines, col_max=60)


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    # Imported here, because only shells ask.
    from runner.verbs.shared.candidates import candidates

    return candidates(ctx, param.name or "", incomplete)


_flag = functools.partial(click.Option, shell_complete=_complete)
SELECTION_OPTIONS = (
    _flag(["--cluster"], default="", metavar="lab3", help="the cluster, a file in conf/cluster"),
    _flag(
        ["--set", "set_"],
        multiple=True,
        metavar="task=train",
        help="KEY=VALUE, as without this flag; repeatable",
    ),
    _flag(
        ["-cd", "--config-dir"],
        multiple=True,
        metavar="~/conf",
        help="look for YAML here first; repeatable",
    ),
)
_option = functools.partial(click.option, shell_complete=_complete)
run_option = _option("--run", default="", metavar="latest", help="the run's id, or latest")
runs_option = _option(
    "--run",
    multiple=True,
    metavar="latest",
    help="a run id, latest, a folder, or a sweep's id; repeatable",
)
key_option = _option("--key", default="", metavar="cluster.python", help="a key and all below it")
json_option = click.option("--json", "json_", is_flag=True, help="print JSON")


def verb(
    name: str,
    *,
    subject: str = "run",
    keys: Sequence[str] | None = (),
    examples: Mapping[str, str] | None = None,
) -> Callable[[Body], Verb]:
    """Make a verb of a function that returns the exit code.

    Args:
        name: What is typed.
        subject: The option that a bare word stands for; "" for none.
        keys: What it takes beside the keys that reach hosts; None for all.
        examples: Lines that show its use, with what each does.
    """
    return click.command(name, cls=Verb, subject=subject, keys=keys, examples=examples or {})


def show_json(data: Any) -> None:
    show(json.dumps(encode(data)))


def exit_code(job: Callable[[], int]) -> int:
    """Call a job; print its error, and return the exit code."""
    try:
        return job()
    except RunnerError as error:
        return print_error(error)
    except KeyboardInterrupt:
        return SIGNAL_EXIT_BASE + signal.SIGINT
    except BrokenPipeError:  # such as `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return SIGNAL_EXIT_BASE + signal.SIGPIPE
    except Exception as error:  # noqa: BLE001 (a fault of ours)
        return print_error(report_fault(error))


def print_error(error: RunnerError) -> int:
    if error.problems:
        with contextlib.suppress(OSError):  # such as a full disk; the exit code tells
            show(render_problems(error.problems), file=sys.stderr)
    return error.exit_code


def parse_duration(flag: str, text: str, *, allow_bare: bool = True) -> float:
    """Return the value of a flag, such as 12h, in seconds, or raise ConfigError."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d+)?)([smhd]?)", text)
    if not match or not (match[2] or allow_bare or not float(match[1])):
        hint = f"such as {flag} 7d, {flag} 12h, {flag} 30m"
        raise ConfigError([Problem(flag, f"must be a duration, not {text!r}", hint)])
    return float(match[1]) * UNITS[match[2]]
