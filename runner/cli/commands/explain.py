"""The verb `explain`: the provenance of values."""

from __future__ import annotations

import json

from runner.cli.selection import Selection
from runner.cli.verb import verb
from runner.core.codec import encode
from runner.ui.output import show


@verb("explain", key="such as cluster.python; every value below it is explained")
def explain(selection: Selection, key: str, json_: bool = False) -> int:
    """Show which file or override set a value, and what it overrides."""
    from runner.config.explain import origins
    from runner.ui.reports import tables

    with selection.composer() as composer:
        found = origins(composer, selection.overrides, key)
    show(json.dumps(encode(found)) if json_ else tables.render_origins(found))
    return 0
