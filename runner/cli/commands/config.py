"""The verb `config`: the composed configuration as YAML."""

from __future__ import annotations

import json

from runner.cli.selection import Selection
from runner.cli.verb import verb
from runner.ui.output import show


@verb("config", key="only the part below this key", resolve="with every ${...} resolved")
def config(selection: Selection, key: str = "", resolve: bool = False, json_: bool = False) -> int:
    """Print the whole configuration, or a part of it."""
    from runner.config.explain import value_below
    from runner.config.source import dump

    with selection.composer() as composer:
        value = value_below(composer.plain(selection.overrides, is_resolved=resolve), key)
    show(json.dumps(value) if json_ else dump(value).removesuffix("...\n").rstrip("\n"))
    return 0
