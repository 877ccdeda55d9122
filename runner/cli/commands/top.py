"""The verb `top`: what every GPU does, whose it is, and how far the runs are, live."""

from __future__ import annotations

import os
import re
from dataclasses import replace

from runner.cli.selection import Selection
from runner.cli.verb import verb

LIKE_A_RUN = re.compile(r"\d{4}-\d{4}-")
"""What run ids begin with, which no cluster is called: a mistyped one is told as such."""


@verb(
    "top",
    subject="cluster",
    run="only this run and its hosts: its id, or latest",
    once="print a table once; that is also what happens in a pipe",
    json_="print JSON once",
)
def top(selection: Selection, run: str = "", once: bool = False, json_: bool = False) -> int:
    """Watch the hosts of a cluster or of a run: GPUs, whose processes they have, runs.

    What is unusual comes first. Keys: s sorts, g shows each GPU, ? helps, q quits.
    """
    from runner.control.record import run_index
    from runner.ui.top.terminal import is_usable
    from runner.workflows.top.host_watch import HostWatch
    from runner.workflows.top.live_view import watch_live
    from runner.workflows.top.snapshot import print_snapshot
    from runner.workflows.top.subject import Subject

    named = selection.cluster
    if not run and named and (run_index.record_folder(named) or LIKE_A_RUN.match(named)):
        run, selection = named, replace(selection, cluster="")
    composed = selection.contact_for_run(run) if run else selection.contact_latest()
    subject = Subject(composed, is_run=bool(run))
    watch = HostWatch(composed.spec, composed.spec.run_id if run else "")
    if once or json_ or not is_usable():
        return print_snapshot(subject, watch, as_json=json_)
    return watch_live(subject, watch, colour=not os.environ.get("NO_COLOR"))
