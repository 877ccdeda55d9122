"""Program: `runner [KEY=VALUE …] [FLAGS]`, or a verb and its words, on Click."""

from __future__ import annotations

import importlib

import click

from runner import __version__
from runner.cli.words import with_verb
from runner.verbs import verb_names
from runner.verbs.shared.verb import CONTEXT, Verb

HELP = """\
Usage: runner [KEY=VALUE]... [PROGRAM.py [ARGUMENTS]...]
       runner VERB [FLAGS], see `runner VERB --help`

Start a PyTorch job on every machine of a cluster, over SSH.

First steps
  init     write the first YAML: your machines and program
  check    find what would stop a launch, before it does
  launch   the same as no verb, such as
             runner train.py --lr 0.1
             runner cluster=lab task=fit task.args.lr=0.1
  logs     output of the ranks, -f to follow
A run
  ps, top  what runs where, and what every GPU does
  attach   follow a run      stop    end it, with proof
  why      how it ended      stacks  where its ranks are
  pull     download its logs and outputs
Runs     report (a page), compare, export (TensorBoard)
Hosts    deploy (push the code), exec, clean
Keys     config (all of them), explain (who set one)

Flags    --version, --shell-completion bash|zsh|fish
Without --cluster or --run, a verb is about the latest run.
"""
ROOT_FLAGS = ("-h", "--help", "-V", "--version", "--shell-completion")


class Program(click.Group):
    """The verbs; each is imported when it is asked for."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> Verb | None:  # noqa: ARG002
        """Import a verb."""
        return load_verb(cmd_name) if cmd_name in verb_names() else None

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `launch` before words that begin with no verb."""
        is_own = bool(args) and args[0].partition("=")[0] in ROOT_FLAGS
        return super().parse_args(ctx, args if is_own else with_verb(args))

    def format_help(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs by their use."""
        formatter.write(HELP)


def _print_completion(ctx: click.Context, _: click.Parameter, shell: str | None) -> None:
    if shell and not ctx.resilient_parsing:
        from runner.cli.completion import SCRIPTS

        print(SCRIPTS[shell])
        ctx.exit()


@click.group(cls=Program, context_settings=CONTEXT)
@click.version_option(__version__, "-V", "--version", message="runner %(version)s")
@click.option(
    "--shell-completion",
    type=click.Choice(["bash", "zsh", "fish"]),
    metavar="bash",
    is_eager=True,
    expose_value=False,
    callback=_print_completion,
)
def program() -> None:
    """Start a PyTorch job on every machine of a cluster."""


def load_verb(name: str) -> Verb:
    """Import one verb."""
    module = importlib.import_module(f"runner.verbs.{name}")
    return next(each for each in vars(module).values() if isinstance(each, Verb))
