"""Words of the command line about single nodes."""

from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from runner.config.compose import apply_words
from runner.config.source import parse
from runner.core.errors import ConfigError
from tests.golden.test_specs import spec_of


def test_the_command_line_wins_over_every_entry() -> None:
    """Wherever the node stands in the YAML, and again in a rerun, which has the entries alone."""
    entries = {
        "gpu2": {"gpus": 4, "env": {"A": 4}},
        "gpu[1-2]": {"gpus": 8, "env": {"A": 8, "B": 8}},
    }
    typed = ["gpu1.gpus=3", "gpu1.env.A=True", "gpu[1-2].env.B=9", "gpu2.env.C=1"]
    config = OmegaConf.create({"cluster": {"nodes": entries}})
    apply_words(config, [f"cluster.nodes.{word}" for word in typed])
    recorded = OmegaConf.to_container(config.cluster.nodes)
    for order in (recorded, dict(reversed(recorded.items()))):  # type: ignore[union-attr]
        nodes = spec_of({"cluster.nodes": order}).nodes
        first, second = sorted(nodes, key=lambda node: node.name)
        assert (first.gpu_count, first.env) == (3, {"A": "True", "B": "9"})
        assert (second.gpu_count, second.env) == (4, {"A": "4", "B": "9", "C": "1"})


def test_words_about_single_nodes() -> None:
    """Of a range, of a name with dots, of a whole range; a new one needs a plus."""
    text = "cluster: {nodes: {n1.lab: {}, 'gpu[01-02]': {gpus: 8}}}"
    words = [
        "cluster.nodes.n1.lab.gpus=1",
        "cluster.nodes.gpu02.env.A=0123",
        "cluster.nodes.gpu[01-02].port=22",
        "+cluster.nodes.new.host=10.0.0.9",
    ]
    config = OmegaConf.create(parse(text, Path("x")).content)
    apply_words(config, words)
    assert OmegaConf.to_container(config.cluster.nodes) == {
        "n1.lab": {"gpus": "1"},
        "gpu[01-02]": {"gpus": "8", "port": "22"},
        "gpu02": {"env": {"A": "0123"}, "port": "22"},
        "new": {"host": "10.0.0.9"},
    }
    apply_words(config, ["cluster.nodes.new=3"])
    assert config.cluster.nodes.new == "3"  # which is refused with the other entries
    with pytest.raises(
        ConfigError, match="there is no node gpu3; the nodes are n1.lab, gpu01, gpu02, new"
    ):
        apply_words(config, ["cluster.nodes.gpu3.gpus=1"])
