"""The page on Slurm: its files compose, and it has every key of a job."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
import yaml

from runner.cli.main import for_each_run, main
from runner.config.schema.slurm import SlurmConfig
from runner.core.model.slurm import SlurmSpec
from runner.core.model.spec import LaunchRequest

pytestmark = [pytest.mark.documents("docs/slurm.md")]

PAGE = (Path(__file__).parents[2] / "docs" / "slurm.md").read_text(encoding="utf-8")
CLUSTER, LIMIT = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
OPTIONS = (
    *("--nodes=4", "--partition=gpu", "--account=vision", "--time=4:00:00", "--gpus-per-node=8"),
    *("--cpus-per-task=64", "--signal=B:USR1@300", "--requeue"),
)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with the cluster of the page, and what the page adds to it later."""
    values = yaml.safe_load(CLUSTER)
    values["slurm"] |= yaml.safe_load(LIMIT)["slurm"]
    (tmp_path / "conf" / "cluster").mkdir(parents=True)
    (tmp_path / "conf" / "cluster" / "hpc.yaml").write_text(yaml.safe_dump(values))
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("project")
def test_the_files_ask_for_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    """By the options of the script that is printed."""
    assert main(["cluster=hpc", "task.script=train.py", "dry_run=offline"]) == 0
    script = capsys.readouterr().out
    assert [option for option in OPTIONS if f"#SBATCH {option}\n" not in script] == []


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("words", "nnodes", "spares"),
    [
        (["cluster.nodes=5", "task.nnodes=4", "relaunch.max=3"], 5, 1),
        (["cluster.nodes=2:4", "rendezvous=c10d"], 4, 0),
        (["cluster.nproc_per_node=8", "task.entry=srun"], 4, 0),
    ],
)
def test_words_of_the_page_compose(words: list[str], nnodes: int, spares: int) -> None:
    """Each with as many nodes as the page says."""
    asked: list[SlurmSpec | None] = []

    def note(request: LaunchRequest) -> int:
        asked.append(request.spec.slurm)
        return 0

    assert for_each_run(["cluster=hpc", "task.script=train.py", *words], note) == 0
    assert [(slurm.nnodes, slurm.spares) for slurm in asked if slurm] == [(nnodes, spares)]


@pytest.mark.parametrize("key", [field.name for field in dataclasses.fields(SlurmConfig)])
def test_every_key_is_there(key: str) -> None:
    """In the table of keys, with its option."""
    table = PAGE.partition("## What a job asks for")[2].partition("\n## ")[0]
    assert re.search(rf"`(slurm)?\.{key}\b", table)
