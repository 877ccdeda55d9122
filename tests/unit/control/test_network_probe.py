"""The network probe, before any host is asked."""

from __future__ import annotations

from dataclasses import replace

from runner.control.network_probe import NetworkProber
from runner.core.model.spec import Node
from tests.golden.builders import facts, spec


def test_one_machine_has_no_pairs_to_try() -> None:
    """All nodes of transport local; what it would be asked by is not even looked at."""
    here = Node("a", "a", transport="local")
    nodes = (here, replace(here, name="b", host="b"))
    known = {node.name: facts(node.name, "eth0 10.0.0.1/24") for node in nodes}

    def ask(_: object) -> None:
        raise AssertionError

    prober = NetworkProber(spec(*nodes), ask)  # type: ignore[arg-type]
    assert prober.run(nodes, known, pairs=True, names=True) is None
