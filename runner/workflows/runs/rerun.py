"""Confirmation of a rerun whose record came from hosts: it is shown before it is launched.

Such a record says what runs on which machines, with what is taken from this one. A host could have
made it up, and named others.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from runner.core.model.spec import DryRun, LaunchRequest
from runner.core.text import join_some
from runner.ui.output import show
from runner.ui.reports.report import render_access
from runner.workflows.confirmation import ask
from runner.workflows.launch import dry_run


def confirm_record(request: LaunchRequest) -> None:
    """Show what a launch would do by the record of hosts, and ask about it.

    Nothing is asked about a dry run that contacts no host.

    Raises:
        ConfigError: There is no terminal to ask on.
        Interrupted: The answer is no.
    """
    if request.dry_run is DryRun.OFFLINE:
        return
    dry_run(replace(request, dry_run=DryRun.OFFLINE, plan_as_json=False))
    show(render_access(request))
    hosts = join_some(request.record_hosts)
    action = f"launch this by the record that came from {hosts}, not from a launch here"
    details = "what it would run is shown above"
    ask(action, details, lambda text: show(text, file=sys.stderr), None)
