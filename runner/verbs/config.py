"""The verb `config`: the composed configuration as YAML."""

from __future__ import annotations

import click

from runner.ui.output import show
from runner.verbs.shared.selection import Selection
from runner.verbs.shared.verb import json_option, key_option, show_json, verb


@verb(
    "config",
    subject="key",
    keys=None,
    examples={"config cluster.ssh --cluster lab3": "a part of it"},
)
@key_option
@click.option("--resolve", is_flag=True, help="with every ${...} resolved")
@json_option
def config(selection: Selection, key: str, resolve: bool, json_: bool) -> int:
    """Print the whole configuration, or a part of it."""
    from runner.config.compose import open_composer
    from runner.config.layers import locate
    from runner.config.source import dump

    with open_composer(selection.config_dirs) as composer:
        _, value = locate(composer.plain(selection.settings, is_resolved=resolve), key)
    if json_:
        show_json(value)
    else:
        show(dump(value).removesuffix("...\n").rstrip("\n"))
    return 0
