"""The verb `config`: the composed configuration as YAML."""

from __future__ import annotations

import json

from runner.cli.selection import Selection
from runner.cli.verb import verb
from runner.ui.output import show


@verb("config", key="only the part below this key", resolve="with every ${...} resolved")
def config(selection: Selection, key: str = "", resolve: bool = False, json_: bool = False) -> int:
    """Print the whole configuration, or a part of it."""
    with selection.composer() as composer:
        text = composer.yaml(selection.overrides, key, resolve=resolve)
    if json_:
        import yaml

        text = json.dumps(yaml.safe_load(text))
    show(text.rstrip("\n"))
    return 0
