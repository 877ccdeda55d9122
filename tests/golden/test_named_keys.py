"""Keys of the configuration that messages name: each is in the schema."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

from runner.config.schema import SECTIONS

PACKAGE = Path(__file__).parents[2] / "runner"
OPEN = ("cluster.env", "task.env", "task.args", "container.env", "rendezvous.conf")
"""Mappings whose keys are the user's."""

KEYS = {
    f"{section}.{field.name}".lstrip(".")
    for section, schema in SECTIONS.items()
    for field in dataclasses.fields(schema)
}
GROUPS = {key.partition(".")[0] for key in KEYS if "." in key}
NAMED = re.compile(rf"(?<![\w./-])((?:{'|'.join(sorted(GROUPS))})(?:\.[A-Za-z_]+)+)(?![\w(/])")
NO_KEYS = {
    "cluster.deploy",  # an old one, which is told as such
    "cluster.ssh.KEY",
    "container.began",  # a file, as the next ones are
    "sweep.json",
    "sweep.sh",
    "task.name",  # of Hydra
}


def texts(path: Path) -> Iterator[str]:
    """Yield the texts of a module but its docstrings; what is filled in is called NODE."""
    tree = ast.parse(path.read_text())
    parts = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in node.values
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else "NODE"
                for part in node.values
            )
        elif isinstance(node, ast.Constant) and id(node) not in parts:
            yield str(node.value)


def keys_named(text: str) -> Iterator[str]:
    """Yield the keys in a message, with the name of any node as the schema has it."""
    for match in NAMED.finditer(text):
        yield re.sub(r"^cluster\.nodes\.[A-Za-z_]+", "cluster.nodes.NODE", match[1])


def test_messages_name_keys_that_exist() -> None:
    """Whoever does what a message says must not be told that there is no such key."""
    unknown = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for text in texts(path):
            for key in keys_named(text):
                is_filled_in = key.endswith(".NODE")
                if not (is_filled_in or key in {*KEYS, *NO_KEYS} or key.startswith(OPEN)):
                    unknown[key] = str(path.relative_to(PACKAGE))
    assert unknown == {}
