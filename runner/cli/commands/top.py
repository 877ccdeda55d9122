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
from runner.control.record.file_names import LATEST

LIKE_A_RUN = re.compile(r"\d{4}-\d{4}-")
"""What run ids begin with, which no cluster is called: a mistyped one is told as such."""


@verb(
    "top",
    subject="cluster",
    examples={"top lab3": "its machines", "top --run latest": "those of a run"},
)
@run_option
@click.option("--once", is_flag=True, help="print a table once, as in a pipe")
@click.option("--json", "json_", is_flag=True, help="print JSON once")
def top(selection: Selection, run: str, once: bool, json_: bool) -> int:
    """Watch the hosts of a cluster or of a run: GPUs, whose processes they have, runs.

    What is unusual comes first. Ctrl-C ends the view, and no run.
    """
    from runner.workflows.top import watch_hosts

    is_live = not (once or json_) and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    word = selection.cluster
    if word and not run and _means_run(word, selection):
        run = word
        selection = replace(selection, cluster="")
    composed = selection.contact_for_run(run) if run else selection.contact_latest()
    return watch_hosts(composed, is_run=bool(run), is_live=is_live, as_json=json_)


def _means_run(word: str, selection: Selection) -> bool:
    """Return whether a word is a run: no cluster, and how one on record begins."""
    from runner.config.source import ConfigFiles, conf_folders

    if word == LATEST or run_index.record_folder(word) or LIKE_A_RUN.match(word):
        return True
    is_known = any(name.startswith(word) for name in run_index.records().values())
    files = ConfigFiles(conf_folders(selection.config_dirs))
    return is_known and not files.find(f"cluster/{word}")
