"""The verb `clean`: garbage collection of old runs and releases on the hosts."""

from __future__ import annotations

import json

from runner.cli.command import Selection, open_pool, parse_duration, verb, workdir_request
from runner.core.codec import encode
from runner.core.errors import Interrupted


@verb(
    "clean",
    older_than="the age since the end or last use: 7d, 12h, 30m; by default 7d",
    dry_run="remove nothing, only list what would be removed",
)
def clean(
    selection: Selection, older_than: str = "7d", dry_run: bool = False, json_: bool = False
) -> int:
    """Remove old runs and releases from every host.

    With their logs and the files of their ranks; never what is in use.
    """
    from runner.core.planning.readiness import workdir_problems
    from runner.ui.reports import tables

    older_than_s = parse_duration("--older-than", older_than, allow_bare=False)
    request = {"older_than_s": older_than_s, "dry_run": dry_run}
    composed = selection.compose()
    spec = composed.spec
    with open_pool(composed) as pool:
        pool.collect_facts(lambda node: workdir_request(spec, node), workdir_problems)
        pool.console.phase("cleaning")
        broadcast = pool.broadcast()
        try:
            cleaned = broadcast.all("clean", request, reply_kind="cleaned")
        except Interrupted as error:
            message = "interrupted; what was removed is gone, the rest is intact"
            raise Interrupted(error.exit_code, message) from None
    results = {node.name: tables.CleanResult.from_reply(cleaned[node.name]) for node in spec.nodes}
    print(json.dumps(encode(results)) if json_ else tables.render_clean(results, dry_run=dry_run))
    return 0
