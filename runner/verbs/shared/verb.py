"""Verbs: commands of Click whose bare words are `KEY=VALUE`, or the verb's one subject."""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from runner.config.words import is_override
from runner.core.errors import SIGNAL_EXIT_BASE, ConfigError, Problem, RunnerError
from runner.ui.output import show
from runner.ui.problems import render_problems
from runner.verbs.shared.selection import Selection

UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
Body = Callable[..., int]


class MisplacedWords(click.UsageError):
    """Bare words that a verb has no place for."""

    def __init__(self, verb: str, words: Sequence[str]) -> None:
        super().__init__(f"misplaced words of {verb}")
        self.verb = verb
        self.words = words


class Verb(click.Command):
    """A command about a cluster or its runs."""

    subject = ""  # the option that a bare word stands for
    selects_hosts = True
    takes_words = False  # after `--`
    keys: Sequence[str] | None = ()  # what it takes beside those that reach hosts; None: all
    examples: Mapping[str, str] = {}
    body: Body

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words; a flag with one value is not given twice."""
        if not ctx.resilient_parsing:
            try:
                _, _, given = self.make_parser(ctx).parse_args(list(args))
            except click.NoSuchOption as error:  # of `-tail` it names `-t`
                begin = error.option_name
                flag = next((word for word in args if word.startswith(begin)), begin)
                raise click.NoSuchOption(flag, ctx=ctx) from None
            except click.UsageError as error:
                error.ctx = ctx
                raise
            for option in self.params:
                is_single = isinstance(option, click.Option) and not option.is_flag
                if is_single and not option.multiple and given.count(option) > 1:
                    raise click.UsageError(f"{option.opts[-1]} is given twice", ctx)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> int:
        """Carry out the verb; return the exit code."""
        values = dict(ctx.params)
        passed_on: Sequence[str] = ctx.obj or ()
        if self.takes_words:
            values["words"] = passed_on
        elif passed_on:
            raise click.UsageError("it takes no words after `--`", ctx)
        settings = [*values.pop("set_", ())]
        rest: list[str] = []
        for word in ctx.params["words"]:
            # A command of the shell may begin by setting a variable.
            is_line = self.subject == "command" and re.match(r"\w+=.*\s", word) is not None
            is_setting = self.selects_hosts and is_override(word) and not is_line
            (settings if is_setting else rest).append(word)
        if rest and not self.subject:
            raise MisplacedWords(self.name or "", rest)
        for word in rest:
            given = values[self.subject]
            if isinstance(given, tuple):
                values[self.subject] = (*given, word)
                continue
            if given:
                hint = "; a command of several words comes after `--`" if self.takes_words else ""
                message = f"{word!r} is one word too many: --{self.subject} is {given!r}{hint}"
                raise click.UsageError(message, ctx)
            values[self.subject] = word
        if self.selects_hosts:
            values["selection"] = Selection(
                values.pop("cluster"),
                tuple(settings),
                tuple(values.pop("config_dir")),
                verb=self.name or "",
                keys=self.keys,
            )
            values["selection"].refuse_ignored_words()
        if not self.takes_words:
            del values["words"]
        return int(self.body(**values))

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what the verb is for, and lines that show its use."""
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


SELECTION_OPTIONS = (
    click.Option(
        ["--cluster"],
        default="",
        metavar="lab3",
        help="the cluster, a file in conf/cluster",
        shell_complete=_complete,
    ),
    click.Option(
        ["--set", "set_"],
        multiple=True,
        metavar="task=train",
        help="KEY=VALUE, as without this flag; repeatable",
        shell_complete=_complete,
    ),
    click.Option(
        ["-cd", "--config-dir"],
        multiple=True,
        metavar="~/conf",
        help="look for YAML here first; repeatable",
    ),
)


def verb(
    name: str,
    *,
    subject: str = "run",
    keys: Sequence[str] | None = (),
    examples: Mapping[str, str] | None = None,
) -> Callable[[Body], Verb]:
    """Make a verb of a function that returns the exit code.

    With a parameter `selection` it takes the flags of one, and `KEY=VALUE`; with `words`, what
    comes after `--`.

    Args:
        name: What is typed.
        subject: The option that a bare word stands for; "" for none.
        keys: What it takes beside the keys that reach hosts; None for all.
        examples: Lines that show its use, with what each does.
    """

    def make(body: Body) -> Verb:
        made: Verb = click.command(
            name,
            cls=Verb,
            help=inspect.getdoc(body),
            options_metavar="[FLAGS]",
            context_settings=CONTEXT,
        )(body)
        made.body = body
        made.subject = subject
        made.keys = keys
        made.examples = examples or {}
        parameters = inspect.signature(body).parameters
        made.selects_hosts = "selection" in parameters
        made.takes_words = "words" in parameters
        words = [f"[{subject.upper()}]"] if subject else []
        if made.selects_hosts:
            made.params += SELECTION_OPTIONS
            words.append("[KEY=VALUE]...")
        text = " ".join(words)
        kind = click.UNPROCESSED
        bare = click.Argument(
            ["words"], nargs=-1, metavar=text, type=kind, shell_complete=_complete
        )
        made.params.append(bare)
        return made

    return make


run_option = click.option(
    "--run",
    default="",
    metavar="latest",
    help="the run's id, or latest",
    shell_complete=_complete,
)
runs_option = click.option(
    "--run",
    multiple=True,
    metavar="latest",
    help="a run id or its beginning, latest, a folder, or a sweep's id; repeatable",
    shell_complete=_complete,
)
key_option = click.option(
    "--key",
    default="",
    metavar="cluster.python",
    help="a key; all values below it",
    shell_complete=_complete,
)
json_option = click.option("--json", "json_", is_flag=True, help="print JSON")


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
        if os.environ.get("HYDRA_FULL_ERROR") == "1":
            traceback.print_exc()
        from runner.ui.reports.internal_fault import report_fault

        return print_error(report_fault(error))


def print_error(error: RunnerError) -> int:
    """Print the problems of an error; return its exit code."""
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
