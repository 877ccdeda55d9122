"""The verb `explain`: the provenance of values."""

from __future__ import annotations

from runner.core.errors import ConfigError, Problem
from runner.core.shell import this_program
from runner.ui.output import show
from runner.verbs.shared.selection import Selection
from runner.verbs.shared.verb import json_option, key_option, show_json, verb


@verb(
    "explain",
    subject="key",
    keys=None,
    examples={"explain cluster.python --cluster lab3": "its file and line"},
)
@key_option
@json_option
def explain(selection: Selection, key: str, json_: bool) -> int:
    """Show which file or override set a value, and what it overrides."""
    from runner.config.compose import open_composer
    from runner.ui.reports import tables

    if not key:
        hint = f"such as {this_program()} explain cluster.python"
        raise ConfigError([Problem("explain", "no key is given", hint)])
    with open_composer(selection.config_dirs) as composer:
        found = composer.composed(selection.settings).origins(key)
    if json_:
        show_json(found)
    else:
        show(tables.render_origins(found))
    return 0
