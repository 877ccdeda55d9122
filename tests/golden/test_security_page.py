"""SECURITY.md: every test that it names exists, and no promise is without one."""

from __future__ import annotations

import ast
import re

import pytest

from tests.promises import ROOT

PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_every_test_that_is_named_exists(path: str, name: str) -> None:
    """Under that name, in that file."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_promise_has_a_test() -> None:
    """Each point of what is promised names at least one."""
    promised = PAGE.partition("## What is promised\n")[2].partition("\n## ")[0]
    points = promised.split("\n* ")[1:]
    assert len(points) >= 8
    assert [point for point in points if "::test_" not in point] == []
