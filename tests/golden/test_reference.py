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

from docs import reference
from runner.cli.main import for_each_run
from runner.config.schema import SECTIONS, RunnerConfig
from runner.config.schema.cluster import ClusterConfig, NodeConfig, SshConfig
from runner.config.schema.slurm import SlurmConfig
from runner.config.validation import join_or
from runner.core.model.spec import DryRun, LaunchRequest

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


@pytest.mark.parametrize(("key", "field"), FIELDS, ids=[key for key, _ in FIELDS])
def test_every_key_has_help(key: str, field: dataclasses.Field[object]) -> None:
    """A sentence and what is legal; and it is on the page."""
    assert 4 < len(field.metadata["help"]) < 120
    assert field.metadata["legal"]
    assert f"| `{field.name}` |" in reference.render(), key


def test_every_part_of_the_schema_has_a_section() -> None:
    """One that nests further would be missed in silence."""
    factories: list[Any] = [field.default_factory for _, field in FIELDS]
    nested = {each for each in factories if dataclasses.is_dataclass(each)}
    assert nested | {RunnerConfig, NodeConfig} == set(SECTIONS.values())


def test_what_is_legal_is_what_the_checks_take() -> None:
    """Where the key is read by itself; the others are read as their kind says."""
    legal = {key: field.metadata["legal"] for key, field in FIELDS}
    assert legal["dry_run"] == join_or([*DryRun, "json", "[offline, json]"])


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


def test_defaults_are_shown_as_yaml_has_them() -> None:
    """So that they can be copied."""
    shown = reference.render()
    assert "| `project` | `null` |" in shown
    assert "| `dry_run` | `false` |" in shown
    assert "| `only` | `[]` |" in shown


def test_every_example_composes(runs_of: Callable[..., list[LaunchRequest]]) -> None:
    """Each line of shell on the page, with the files on the page; they mean what it says."""
    lines = re.findall(r"^runner (.*)$", reference.render(), re.MULTILINE)
    runs = [run for line in lines for run in runs_of(*shlex.split(line))]
    assert len(runs) == len(lines) + 1 == 11
    plain, changed, alone, added, quoted, shell, passed_on, first, second, few, two = runs
    assert plain.spec.task.args == ("--lr", "0.1", "--amp", "--sizes", "1", "2")
    assert [node.gpu_count for node in changed.spec.nodes] == [None, 4]
    assert alone.spec.task.args == ("--epochs", "3")
    assert (len(added.spec.nodes), "--amp" in added.spec.task.args) == (3, False)
    assert quoted.spec.task.args[-2:] == ("--note", "a, b and c")
    assert shell.spec.task.args == ("-c", "echo $RANK")
    assert passed_on.spec.task.args[-3:] == ("--lr", "0.01", "--amp")
    assert (first.spec.task.args[1], second.spec.task.args[1]) == ("0.1", "0.01")
    assert [node.name for node in few.spec.nodes][2:4] == ["gpu04", "gpu05"]
    assert [node.gpu_count for node in two.spec.nodes] == [8, 4]


def test_every_file_of_the_page_composes(runs_of: Callable[..., list[LaunchRequest]]) -> None:
    """Also those that no line of shell uses; each builds on what it names."""
    (debug,) = (run.spec for run in runs_of("cluster=mine-debug"))
    assert [node.name for node in debug.nodes] == ["gpu1"]
    assert (debug.python, debug.env) == ("~/venv/bin/python", {"NCCL_DEBUG": "INFO"})
    assert (debug.lost_s, debug.task.name) == (60.0, "train")
    (noted,) = runs_of("task=noted", "run_id=r1", "cluster.only=[gpu1]")
    assert noted.spec.task.args[-6:] == (
        *("--data", "/data", "--output", "results/r1"),
        "--nodes",
        "gpu1",
    )
