"""The verb `plan`: the commands of a launch, shown."""

from __future__ import annotations

from dataclasses import replace

from runner.cli.command import Selection, verb
from runner.core.model.launch_request import DryRun


@verb("plan", offline="ask no host: show what can be known from here")
def plan(
    selection: Selection,
    offline: bool = False,
    json_: bool = False,
) -> int:
    """Show what each host would be told, ready to paste.

    Nothing is started, and nothing written anywhere.
    """
    from runner.workflows.launch import dry_run

    composed = selection.compose()
    offline = offline or composed.dry_run is DryRun.OFFLINE
    mode = DryRun.OFFLINE if offline else DryRun.ON
    dry_run(replace(composed, dry_run=mode, notes=()), as_json=json_)
    return 0
