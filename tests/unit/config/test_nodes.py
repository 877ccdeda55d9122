"""Nodes of a run, and their order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from runner.config.nodes import apply_words
from runner.config.source import parse
from runner.config.words import node_words
from runner.core.errors import ConfigError
from runner.core.spec import Node
from tests.unit.config.test_config import spec_of

RANGE: dict[str, Any] = {"gpu1": {}, "gpu2": {}, "gpu[03-16]": {}}


def nodes_of(nodes: Any, task: dict[str, Any] | None = None, **cluster: Any) -> tuple[Node, ...]:
    changes = {f"cluster.{key}": value for key, value in {"nodes": nodes, **cluster}.items()}
    changes |= {f"task.{key}": value for key, value in (task or {}).items()}
    return spec_of(changes).nodes


def names_of(nodes: Any, **cluster: Any) -> str:
    return " ".join(node.name for node in nodes_of(nodes, **cluster))


def test_a_node_without_settings_has_those_of_its_cluster() -> None:
    """Its host is its name; `{}` and nothing are the same; its own word counts, also `auto`."""
    chosen = nodes_of({"a": None, "b": {}}, transport="local", gpus_per_node=2, nproc_per_node=3)
    assert chosen == tuple(
        Node(name=name, host=name, transport="local", gpus=2, nproc_per_node=3) for name in "ab"
    )
    (node,) = nodes_of({"a": {"gpus": "auto", "nproc_per_node": "auto"}}, nproc_per_node=3)
    assert (node.gpu_count, node.nproc_per_node) == (None, None)


def test_rank_order_is_the_order_of_the_yaml() -> None:
    """Ranges stand where they are written; the master, whose store a static run uses, first."""
    assert names_of({"b": {}, "c[2-3]": {}, "a": {}}) == "b c2 c3 a"
    assert names_of({"a": {}, "b": {}, "c": {}}, master="b") == "b a c"


def test_the_entry_of_a_node_adds_to_that_of_its_range() -> None:
    """It keeps its place; environments are merged, other keys replaced."""
    first, second, third = nodes_of(
        {
            "gpu[1-3]": {"user": "ada", "gpus": 8, "env": {"A": 1, "B": 1}},
            "gpu2": {"gpus": [1], "env": {"B": 2}},
        }
    )
    assert (first, third) == tuple(
        Node(name=name, host=name, user="ada", gpus=8, env={"A": "1", "B": "1"})
        for name in ("gpu1", "gpu3")
    )
    assert second == Node(name="gpu2", host="gpu2", user="ada", gpus=(1,), env={"A": "1", "B": "2"})


def test_the_command_line_wins_over_every_entry() -> None:
    """Wherever the node stands in the YAML, and again in a rerun, which has the entries alone."""
    nodes = {"gpu2": {"gpus": 4, "env": {"A": 4}}, "gpu[1-2]": {"gpus": 8, "env": {"A": 8, "B": 8}}}
    typed = ["gpu1.gpus=3", "gpu1.env.A=True", "gpu[1-2].env.B=9", "gpu2.env.C=1"]
    config = OmegaConf.create({"cluster": {"nodes": nodes}})
    apply_words(config, node_words([f"cluster.nodes.{word}" for word in typed])[1])
    recorded = OmegaConf.to_container(config.cluster.nodes)
    for order in (recorded, dict(reversed(recorded.items()))):  # type: ignore[union-attr]
        first, second = sorted(nodes_of(order), key=lambda node: node.name)
        assert (first.gpu_count, first.env) == (3, {"A": "True", "B": "9"})
        assert (second.gpu_count, second.env) == (4, {"A": "4", "B": "9", "C": "1"})


@pytest.mark.parametrize(
    ("cluster", "names"),
    [
        ({"exclude": ["gpu1", "gpu[03-15]"]}, "gpu2 gpu16"),
        ({"only": "gpu[03-05]", "exclude": "gpu04"}, "gpu03 gpu05"),
        ({"task": {"nodes": ["gpu16", "gpu2"]}}, "gpu2 gpu16"),
        ({"task": {"nnodes": 2}, "master": "gpu05"}, "gpu05 gpu1"),
        ({"task": {"nnodes": 2}, "exclude": ["gpu1"]}, "gpu2 gpu03"),
    ],
)
def test_a_part_of_a_cluster(cluster: dict[str, Any], names: str) -> None:
    """`only`, `exclude` and `task.nodes` keep the order, `task.nnodes` takes the first."""
    assert names_of(RANGE, **cluster) == names


def test_one_host_with_two_ports_is_two_machines() -> None:
    """Such as two containers behind one address; and local nodes share a machine on purpose."""
    assert names_of({"a": {"host": "x", "port": 1}, "b": {"host": "x", "port": 2}}) == "a b"
    assert names_of({"a": {"host": "x"}, "b": {"host": "x"}}, transport="local") == "a b"


def test_words_about_single_nodes() -> None:
    """Of a range, of a name with dots, of a whole range; a new one needs a plus."""
    text = "cluster: {nodes: {n1.lab: {}, 'gpu[01-02]': {gpus: 8}}}"
    _, words = node_words(
        [
            "cluster.nodes.n1.lab.gpus=1",
            "cluster.nodes.gpu02.env.A=0123",
            "cluster.nodes.gpu[01-02].port=22",
            "+cluster.nodes.new.host=10.0.0.9",
        ]
    )
    config = OmegaConf.create(parse(text, Path("x")).content)
    apply_words(config, words)
    assert OmegaConf.to_container(config.cluster.nodes) == {
        "n1.lab": {"gpus": "1"},
        "gpu[01-02]": {"gpus": "8", "port": "22"},
        "gpu02": {"env": {"A": "0123"}, "port": "22"},
        "new": {"host": "10.0.0.9"},
    }
    apply_words(config, node_words(["cluster.nodes.new=3"])[1])
    assert config.cluster.nodes.new == "3"  # which is refused with the other entries
    with pytest.raises(
        ConfigError, match="there is no node gpu3; the nodes are n1.lab, gpu01, gpu02, new"
    ):
        apply_words(config, node_words(["cluster.nodes.gpu3.gpus=1"])[1])
