"""The command line in this process: from words and a folder of YAML to runs."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from runner import __version__
from runner.config.source import conf_folders
from runner.control.assumed_facts import assumed_facts
from runner.core.errors import NotReady
from runner.core.planning.build_plan import build_plan
from runner.core.wire.codec import encode
from tests.golden.conftest import Replay
from tests.golden.here import CONF, Here
from tests.golden.test_specs import flat, spec_of
from tests.lab.waiting import PATIENCE

BASE = "defaults: [base]\n"
LEFT_OUT = ("run_", "cluster.project", "cluster.python", "cluster.host_python", "cluster.nodes")
"""Keys of this machine, and what is said again."""


@pytest.mark.promise(14)
def test_what_is_typed_composes_with_what_is_written(here: Here, replay: Replay) -> None:
    """The user's own files win; what nobody says is the default, and left out here."""
    usual = dict(flat(encode(spec_of({}))))

    def composed(words: list[str]) -> str:
        said = here(*words)
        page = [said.err]
        for run in said.runs:
            page += [f"  note: {note}\n" for note in (*run.notes, *run.file_notes)]
            page += [
                f"  {key}: {value}\n"
                for key, value in flat(encode(run.spec))
                if usual.get(key, ()) != value and not key.startswith(LEFT_OUT)
            ]
        return "".join(page)

    replay("composed.txt", composed)


def test_what_is_composed_is_plain_data(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """A spec, the options of the run, and a record without values of the environment."""
    monkeypatch.setenv("DATA", "/data/of/ada")
    words = ("cluster=pair", "task=mine", "dry_run=offline", "task.args.data=${oc.env:DATA}")
    run = here(*words).run
    assert run.spec.task.words == ("--lr", "0.1", "--data", "/data/of/ada")
    assert run.spec.cluster.project == str(here.folder)
    assert run.run_dir == here.folder / "runs" / run.spec.run_id
    assert (run.notes, run.overrides) == ((), words)
    record = yaml.safe_load(run.config_yaml)
    assert record["task"]["args"] == {"lr": 0.1, "data": "${oc.env:DATA}"}
    assert (record["run_id"], record["run_dir"]) == (run.spec.run_id, "runs/${run_id}")
    assert "hydra" not in record


def test_every_shipped_option_composes(here: Here) -> None:
    """From any folder, with nothing else said."""
    tasks = {path.stem for path in (CONF / "task").glob("*.yaml")}
    assert {here(f"task={task}").run.spec.task.name for task in tasks} == tasks
    assert len(here("cluster=lab3", "task=mine").run.spec.nodes) == 16


def test_folders_of_yaml_in_order(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those given, the nearest of the user's own upwards, the shipped one; each of them once.

    A `conf/` of another program may come first; what it hides is named.
    """
    mine = here.folder / "conf"
    here.write({"a/b/conf/other.yaml": "", "given/x.yaml": ""})
    here.write(
        {"a/c/conf/task/x.yaml": f"{BASE}script: t.py\n", "a/c/conf/task/base.yaml": "x: 1\n"}
    )
    monkeypatch.chdir(here.folder / "a" / "b")
    assert conf_folders([]) == [mine, CONF]
    assert conf_folders(["../../given", str(mine)]) == [Path.cwd() / "../../given", mine, CONF]
    monkeypatch.chdir(here.folder / "a" / "c")
    assert conf_folders([]) == [Path.cwd() / "conf", CONF]
    assert here("cluster=local", "task=x").run.spec.task.target == "t.py"
    said = here("task=mine").err
    assert f"    looked in conf/task and {CONF}/task\n" in said
    assert f"    not in {mine}: --config-dir {mine} adds it\n" in said
    monkeypatch.chdir(CONF / "cluster")
    assert conf_folders([]) == [CONF]


def test_a_task_is_asked_for(here: Here, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The shipped one is for a first try, where nobody has a file of their own."""
    monkeypatch.chdir(tmp_path)
    assert here().run.spec.task.name == "resnet18"
    assert here("cluster=lab3").err.startswith("error: task: there is no task to launch")


def test_words_for_a_verb_are_those_that_reach_the_hosts(here: Here) -> None:
    """No task and no environment, whose values may be secret; an experiment may matter."""
    here.write({"conf/experiment/big.yaml": "# @package _global_\nlost_s: 60\n"})
    line = (
        "cluster=local cluster=pair task=mine task.env.TOKEN=hunter2 run_id=r1 "
        "task.args_after=[a] detach=true cluster.env.KEY=hunter2 lost_s=9 "
        "cluster.nodes.gpu1.env.KEY=hunter2 cluster.nodes.gpu1.port=2222 "
        "~cluster.only 'cluster.workdir=/my disk' +experiment=big --config-dir conf"
    )
    assert here(*shlex.split(line)).run.run_flags("r1") == (
        "--run r1 --cluster pair lost_s=9 cluster.nodes.gpu1.port=2222 '~cluster.only' "
        "'cluster.workdir=/my disk' +experiment=big --config-dir conf"
    )


def test_a_plan_for_this_machine_knows_it(here: Here) -> None:
    """Our own interpreter runs there, nodes meet at loopback, a missing program is refused."""
    here.write({"tool/__main__.py": "", "empty/x.py": ""})
    words = ("cluster=local", "cluster.nodes={a: {}, b: {}}", "dry_run=offline")
    asked = here(*words, "task.script=tool").run.spec
    assert (asked.cluster.python, asked.cluster.host_python) == (sys.executable, sys.executable)
    assert {(node.transport, node.nproc_per_node) for node in asked.nodes} == {("local", 2)}
    spec, facts, _ = assumed_facts(asked)
    assert build_plan(spec, facts).master_addr == "127.0.0.1"
    for script in ("nope.py", "empty"):
        with pytest.raises(NotReady, match=f"task.script: there is no file {script} in "):
            assumed_facts(here(*words, f"task.script={script}").run.spec)


@pytest.mark.all
@pytest.mark.parametrize("page", ["restarts", "tasks"])
def test_commands_of_the_docs_compose(here: Here, page: str) -> None:
    """Each launch on the pages whose commands the lab does not run."""
    nodes = "nodes: {gpu1: {host: 10.0.0.1}, gpu2: {host: 10.0.0.2}}"
    here.write(
        {
            "conf/cluster/mine.yaml": f"defaults: [base]\n{nodes}\n",
            "conf/cluster/big.yaml": "defaults: [base]\nnodes: {'gpu[01-16]': {gpus: 8}}\n",
            "conf/task/train.yaml": "defaults: [base]\nscript: train.py\n"
            "args: {lr: 1, amp: true}\n",
        }
    )
    text = (CONF.parent / "docs" / f"{page}.md").read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("runner ")]
    assert lines
    for line in lines:
        said = here(*shlex.split(line, comments=True)[1:], "dry_run=offline")
        assert (said.code, bool(said.runs)) == (0, True), (line, said.err)


@pytest.mark.all
@pytest.mark.promise(14)
def test_lines_of_other_launchers_have_ours_beside_them(here: Here) -> None:
    """Each composes, with the arguments that stand in it."""
    page = (CONF.parent / "docs" / "command-lines.md").read_text()
    here.write(
        dict(re.findall(r"^```yaml\n# (conf/\S+)\n(.*?)^```", page, re.DOTALL | re.MULTILINE))
    )
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| `")]
    assert len(rows) > 1
    for _, line in rows:
        _, *words = shlex.split(line.strip("` |"))
        given = words[words.index("--") + 1 :] if "--" in words else []
        made = here(*words).run.spec.task.words
        assert made[len(made) - len(given) :] == tuple(given), line


def test_an_interrupt_before_anything_was_started(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Is said, and is 130; a version needs no configuration."""
    assert here("--version").out == f"runner {__version__}\n"

    def interrupt(_: object) -> list[Path]:
        raise KeyboardInterrupt

    monkeypatch.setattr("runner.config.compose.conf_folders", interrupt)
    said = here("task=mine")
    assert (said.code, said.err) == (130, "error: interrupted; nothing was started\n")


def test_a_working_directory_that_is_gone(here: Here, tmp_path: Path) -> None:
    """Is exit 2 with a message, as everything else."""
    (tmp_path / "gone").mkdir()
    os.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    said = [here(line) for line in ("task=mine", "ps", "compare 0314")]
    os.chdir(here.folder)
    error = "error: the working directory is not there any more"
    wanted = f"{error}\n    cd to one that is there\n"
    assert {(each.code, each.err) for each in said} == {(2, wanted)}


@pytest.mark.promise(14)
def test_a_program_reads_what_was_written(here: Here, replay: Replay) -> None:
    """In the task's file, on the command line, after `--`, and in each run of a sweep."""

    def read(words: list[str]) -> str:
        said = here(*words)
        assert (said.code, len(said.runs)) == (0, 2), said
        programs = [
            subprocess.run(
                [sys.executable, run.spec.task.target, *run.spec.task.words],
                cwd=here.folder,
                capture_output=True,
                text=True,
                check=True,
                timeout=60 * PATIENCE,
            )
            for run in said.runs
        ]
        return "".join(done.stdout for done in programs)

    replay("argument-styles.txt", read)
