"""The verb `config`: the composed configuration as YAML."""

from __future__ import annotations

import json

from runner.cli.command import Selection, verb


@verb(
    "config",
    key="only what stands below this key",
    resolve="with every ${...} replaced by what it stands for",
)
def config(
    selection: Selection,
    key: str = "",
    resolve: bool = False,
    json_: bool = False,
) -> int:
    """Print the whole configuration, or a part of it."""
    with selection.composer() as composer:
        text = composer.yaml(selection.overrides, key, resolve=resolve)
    if json_:
        import yaml

        text = json.dumps(yaml.safe_load(text))
    print(text.rstrip("\n"))
    return 0
