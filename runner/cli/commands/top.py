"""The verb `top`: what every GPU does, whose it is, and how far the runs are, live."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import replace

import click

from runner.cli.selection import Selection
from runner.cli.verb import run_option, verb
from runner.control.record import run_index
from runner.core.errors import ConfigError, Problem
from runner.core.launch_request import LaunchRequest
from runner.core.shell import this_program

LIKE_A_RUN = re.compile(r"\d{4}-\d{4}-")
"""What run ids begin with, which no cluster is called: a mistyped one is told as such."""


@verb(
    "top",
    subject="cluster",
    examples={"top lab3": "its machines", "top --run latest": "those of a run"},
)
@run_option("only this run and its hosts: its id, or latest")
@click.option("--once", is_flag=True, help="print a table once, as in a pipe")
@click.option("--json", "json_", is_flag=True, help="print JSON once")
def top(selection: Selection, run: str, once: bool, json_: bool) -> int:
    """Watch the hosts of a cluster or of a run: GPUs, whose processes they have, runs.

    What is unusual comes first. Ctrl-C ends the view, and no run.
    """
    from runner.workflows.top import watch_hosts

    named = selection.cluster
    if not run and named and (run_index.record_folder(named) or LIKE_A_RUN.match(named)):
        run, selection = named, replace(selection, cluster="")
    composed, is_run = contact(selection, run)
    is_live = not (once or json_) and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    return watch_hosts(composed, is_run=is_run, is_live=is_live, as_json=json_)


def contact(selection: Selection, run: str) -> tuple[LaunchRequest, bool]:
    """Return how the hosts are reached, and whether a run is meant.

    A word that is no cluster, and how a run on record begins, is that run.
    """
    if run:
        return selection.contact_for_run(run), True
    try:
        return selection.contact_latest(), False
    except ConfigError as error:
        word = selection.cluster
        if not word or _is_cluster(selection):
            raise
        if any(name.startswith(word) for name in run_index.records().values()):
            return replace(selection, cluster="").contact_for_run(word), True
        first, *others = error.problems
        if first.subject != f"cluster={word}":
            raise
        message = f"no run on record begins so, and {first.message}"
        hint = f"{first.hint}\n`{this_program()} ps --all` lists the runs"
        raise ConfigError([Problem(first.subject, message, hint), *others]) from error


def _is_cluster(selection: Selection) -> bool:
    from runner.config.source import ConfigFiles, conf_folders

    files = ConfigFiles(conf_folders(selection.config_dirs))
    return bool(files.find(f"cluster/{selection.cluster}"))
