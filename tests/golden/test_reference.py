"""The configuration reference: made from the schema, current and complete."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from runner.config.schema import SECTIONS, RunnerConfig
from runner.config.schema.cluster import ClusterConfig, NodeConfig, SshConfig
from runner.config.schema.slurm import SlurmConfig

from docs import reference
from runner.cli.main import for_each_run
from runner.core.launch_request import LaunchRequest

ROOT = Path(__file__).parents[2]
FIELDS = [
    (f"{section}.{field.name}".lstrip("."), field)
    for section, schema in SECTIONS.items()
    for field in dataclasses.fields(schema)
]


@pytest.fixture
def runs_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[LaunchRequest]]:
    """Returns the runs of a command line, in a folder with the files of the page."""

    def compose(*words: str) -> list[LaunchRequest]:
        runs: list[LaunchRequest] = []

        def note(request: LaunchRequest) -> int:
            runs.append(request)
            return 0

        assert for_each_run(words, note) == 0
        return runs

    for name, text in re.findall(r"```yaml\n# (\S+)\n(.*?)```", reference.render(), re.DOTALL):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DATA", raising=False)
    return compose


def test_the_page_is_current() -> None:
    """`python -m docs.reference > docs/configuration.md` makes it."""
    assert (ROOT / "docs" / "configuration.md").read_text() == reference.render()


def test_every_key_has_help() -> None:
    """A sentence and what is legal; it is on the page, and no part of the schema is missed."""
    page = reference.render()
    for key, field in FIELDS:
        assert 4 < len(field.metadata["help"]) < 120, key
        assert field.metadata["legal"], key
        assert f"| `{field.name}` |" in page, key
    factories: list[Any] = [field.default_factory for _, field in FIELDS]
    nested = {each for each in factories if dataclasses.is_dataclass(each)}
    assert nested | {RunnerConfig, NodeConfig} == set(SECTIONS.values())


def test_the_full_example_has_every_key_of_a_cluster() -> None:
    """And no other; the nodes' keys are named in it too."""
    text = (ROOT / "conf" / "cluster" / "lab3.yaml").read_text()
    example = yaml.safe_load(text)
    assert set(example) == {
        "defaults",
        *(field.name for field in dataclasses.fields(ClusterConfig)),
    }
    assert set(example["ssh"]) == {field.name for field in dataclasses.fields(SshConfig)}
    assert set(example["slurm"]) == {field.name for field in dataclasses.fields(SlurmConfig)}
    head = text.partition("\nssh:")[0]
    assert [f.name for f in dataclasses.fields(NodeConfig) if f.name not in head] == []


def test_every_example_composes(runs_of: Callable[..., list[LaunchRequest]]) -> None:
    """Each line of shell on the page, with the files on the page; they mean what it says."""
    lines = re.findall(r"^runner (.*)$", reference.render(), re.MULTILINE)
    runs = [run for line in lines for run in runs_of(*shlex.split(line))]
    assert len(runs) == len(lines) + 1 == 11
    plain, changed, alone, added, quoted, shell, passed_on, first, second, few, two = runs
    assert plain.spec.task.words == ("--lr", "0.1", "--amp", "--sizes", "1", "2")
    assert [node.gpu_count for node in changed.spec.nodes] == [None, 4]
    assert alone.spec.task.words == ("--epochs", "3")
    assert (len(added.spec.nodes), "--amp" in added.spec.task.words) == (3, False)
    assert quoted.spec.task.words[-2:] == ("--note", "a, b and c")
    assert shell.spec.task.words == ("-c", "echo $RANK")
    assert passed_on.spec.task.words[-3:] == ("--lr", "0.01", "--amp")
    assert (first.spec.task.words[1], second.spec.task.words[1]) == ("0.1", "0.01")
    assert [node.name for node in few.spec.nodes][2:4] == ["gpu04", "gpu05"]
    assert [node.gpu_count for node in two.spec.nodes] == [8, 4]
