"""Check of the rendezvous: each outcome, on one host of two."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from runner.checks.base import CheckContext, all_checks
from runner.core.model.facts import Facts
from runner.core.model.results import Finding, Level
from runner.core.spec import Node, Rendezvous, Spec, Torchrun
from tests.golden.builders import TORCH, facts, spec

NODES = (Node("a", "10.0.0.1"), Node("b", "10.0.0.2"))


def look(asked: Spec, b: Facts) -> list[Finding]:
    """What is found of two hosts, of which `a` is well."""
    a = facts("a", "eth0 10.0.0.1/24")
    return list(all_checks()["rendezvous"](CheckContext(asked, {"a": a, "b": b})))


def host(**others: Any) -> Facts:
    return facts("b", "eth0 10.0.0.2/24", **others)


@pytest.mark.parametrize(
    ("knobs", "torch", "what"),
    [
        (
            Torchrun(signals_to_handle=("SIGTERM",)),
            "2.9.1+cu128",
            "torchrun.signals_to_handle needs 2.10 or newer",
        ),
        (Torchrun(), "1.13.1", "rendezvous=c10d (--local_addr) needs 2.0 or newer"),
    ],
)
def test_an_option_that_a_hosts_torch_has_not(knobs: Torchrun, torch: str, what: str) -> None:
    """Its version, the key, and the first torch that has it."""
    asked = spec(*NODES, rendezvous=Rendezvous("c10d"), torchrun=knobs)
    (one,) = look(asked, host(python=replace(TORCH, torch=torch)))
    assert (one.level, one.node, one.message) == (
        Level.ERROR,
        "b",
        f"torch {torch} is there, and {what}",
    )
    assert one.hint
