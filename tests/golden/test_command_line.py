"""The command line in this process: from words and a folder of YAML to runs."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from runner import __version__
from runner.cli import main
from runner.cli.main import for_each_run
from runner.config.compose import open_composer
from runner.config.schema import SECTIONS
from runner.config.search_path import conf_folders, shipped_folder
from runner.control.assumed_facts import assumed_facts
from runner.core.errors import NotReady, Problem
from runner.core.model.spec import DryRun, LaunchRequest, SweepPlace, Task
from runner.core.planning.build_plan import build_plan
from runner.workflows.sweep import commands_for

CONF = Path(__file__).parents[2] / "conf"
SHIPPED_TASKS = sorted(path.stem for path in (CONF / "task").iterdir())
SWEPT: Any = SimpleNamespace(
    spec=SimpleNamespace(run_id="r", pushes_code=True, task=SimpleNamespace(shipped_file="")),
    dry_run=DryRun.OFF,
    run_dir=Path("nowhere"),
    sweep=SweepPlace("s", 1, 2, ("task.args.lr=1",)),
    overrides=("cluster=pair", "task.args.lr=1"),
    config_dirs=(),
)
BASE = "defaults: [base]\n"
NULLABLE = ("master", "project", "setup", "only")
MINE = {
    "conf/task/mine.yaml": "defaults: [base]\nscript: train.py\nargs: {lr: 0.1}\n",
    "conf/cluster/pair.yaml": (
        "defaults: [base]\nnodes:\n  gpu1: {host: 10.0.0.1}\n  gpu[02-04]: {gpus: 8}\n"
    ),
}


@dataclass
class Said:
    """How a command line ended."""

    code: int
    runs: list[LaunchRequest]
    out: str
    err: str

    @property
    def run(self) -> LaunchRequest:
        """The only run."""
        assert self.code == 0, self.err
        (run,) = self.runs
        return run


class Here:
    """A user's folder, in which they stand."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys
        self.written = {folder}

    def write(self, files: dict[str, str]) -> None:
        """Write files of the user."""
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            self.written |= {path, *path.parents}

    def __call__(self, *words: str, job: Callable[[LaunchRequest], int] = lambda _: 0) -> Said:
        """Do `python -m runner WORDS`, with `job` in place of a launch."""
        runs: list[LaunchRequest] = []

        def note(composed: LaunchRequest) -> int:
            runs.append(composed)
            return job(composed)

        code = for_each_run(words, note)
        captured = self._capsys.readouterr()
        return Said(code, runs, captured.out, captured.err)


@pytest.fixture
def here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Here]:
    """A folder with a task and a cluster of the user's own, in which the test stands.

    Nothing but what the test writes is in it at the end.
    """
    here = Here(tmp_path / "project", capsys)
    here.write(MINE)
    monkeypatch.chdir(here.folder)
    monkeypatch.setenv("PWD", str(here.folder))
    yield here
    assert set(here.folder.rglob("*")) <= here.written


def test_what_is_composed_is_plain_data(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """A spec, the options of the run, and what to record of where they came from."""
    monkeypatch.setenv("DATA", "/data/of/ada")
    words = ("cluster=pair", "task=mine", "dry_run=offline", "task.args.data=${oc.env:DATA}")
    run = here(*words).run
    assert [node.name for node in run.spec.nodes] == ["gpu1", "gpu02", "gpu03", "gpu04"]
    args = ("--lr", "0.1", "--data", "/data/of/ada")
    assert run.spec.task == Task("mine", "script", "train.py", args)
    assert (run.spec.cluster, run.spec.project) == ("pair", str(here.folder))
    assert (run.dry_run, run.dry_run == "offline") == (DryRun.OFFLINE, True)
    assert run.run_dir == here.folder / "runs" / run.spec.run_id
    assert (run.notes, run.overrides) == ((), words)


def test_the_record_keeps_interpolations(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `${oc.env:…}` stood for is not in the file; the run id is, made or given."""
    monkeypatch.setenv("DATA", "/data/of/ada")
    run = here("cluster=pair", "task=mine", "task.args.data=${oc.env:DATA}").run
    record = yaml.safe_load(run.config_yaml)
    assert record["task"]["args"] == {"lr": 0.1, "data": "${oc.env:DATA}"}
    assert (record["run_id"], record["run_dir"]) == (run.spec.run_id, "runs/${run_id}")
    assert "hydra" not in record


def test_every_shipped_option_composes(here: Here) -> None:
    """From any folder, with nothing else said; and the example shows every key of a cluster."""
    tasks = {path.stem for path in (CONF / "task").glob("*.yaml")}
    assert {here(f"task={task}").run.spec.task.name for task in tasks} == tasks
    run = here("cluster=lab3", "task=mine").run
    assert len(run.spec.nodes) == 16
    shown = yaml.safe_load((CONF / "cluster" / "lab3.yaml").read_text())
    whole = yaml.safe_load(run.config_yaml)["cluster"]
    assert set(shown) == {"defaults", *whole}
    assert set(shown["ssh"]) == set(whole["ssh"])


def test_this_machine_runs_ranks_with_our_own_interpreter(here: Here) -> None:
    """`make run` works without an activated environment."""
    spec = here("cluster=local", "task=mine").run.spec
    assert (spec.python, spec.host_python) == (sys.executable, sys.executable)
    assert [(node.transport, node.nproc) for node in spec.nodes] == [("local", 2)]


def test_folders_of_yaml_in_order(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those given, the nearest of the user's own upwards, the shipped one; each of them once."""
    mine = here.folder / "conf"
    here.write({"a/b/conf/other.yaml": "", "a/c/conf/task/x.yaml": BASE, "given/x.yaml": ""})
    monkeypatch.chdir(here.folder / "a" / "b")
    assert conf_folders([]) == [mine, CONF]
    assert conf_folders(["../../given", str(mine)]) == [Path.cwd() / "../../given", mine, CONF]
    monkeypatch.chdir(here.folder / "a" / "c")
    assert conf_folders([]) == [Path.cwd() / "conf", CONF]
    monkeypatch.chdir(CONF / "cluster")
    assert conf_folders([]) == [CONF]
    assert shipped_folder() == CONF


def test_the_conf_of_another_program_is_not_ours(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A project of Hydra may have a `conf/task` of its own; a runner.yaml, or one file of ours."""
    here.write({"rl/conf/task/hopper.yaml": "defaults: [base]\nname: hopper\nenv: {}\n"})
    here.write({"rl/conf/task/base.yaml": "name: ???\n", "rl/conf/cluster/x.yaml": "walltime: 3\n"})
    monkeypatch.chdir(here.folder / "rl")
    theirs, mine = here.folder / "rl" / "conf", here.folder / "conf"
    assert conf_folders([]) == [mine, CONF]
    every = sorted(["base", "mine", *SHIPPED_TASKS])
    said = here("task=hopper")
    assert said.err == (
        f"error: task=hopper: there is no task 'hopper'; there are {', '.join(every)}\n"
        "    `runner init --task hopper` writes one\n"
        f"    looked in {mine}/task and {CONF}/task\n"
        "    not in conf, which is another program's: an empty conf/runner.yaml adds it\n"
    )
    for name, text in {
        "runner.yaml": "",
        "cluster/mine.yaml": BASE,
        "cluster/broken.yaml": "# mine\ndefaults:\n  - base\nnodes: [\n",
        "cluster/plain.yaml": "nodes: {a: {}}\npython: python3\n",
        "cluster/few.yaml": "defaults: [lab3]\n",
    }.items():
        here.write({f"rl/conf/{name}": text})
        assert conf_folders([]) == [theirs, CONF], name
        (theirs / name).unlink()
        assert conf_folders([]) == [mine, CONF], name


def test_a_task_is_asked_for(here: Here, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The shipped one is for a first try; a runner.yaml may choose one for all runs."""
    tasks = ", ".join(["mine", *SHIPPED_TASKS])
    asked = (
        f"error: task: there is no task to launch; choose one of {tasks}\n"
        "    runner cluster=pair task=mine\n"
        "    or a program: task.script=train.py; conf/runner.yaml may choose for all\n"
    )
    for words in ([], ["cluster=local"], ["cluster=pair"], ["-m", "cluster=pair,local"]):
        assert here(*words).err == asked
    said = here("-m").err
    assert said.startswith("error: --multirun: there is nothing to run through")
    assert len(here(*said.partition("such as: runner ")[2].split()).runs) > 1
    assert here("--cfg", "job").code == here("--help").code == 0
    assert not here("cluster=pair", "task.script=train.py").run.spec.task.args
    here.write({"conf/runner.yaml": "defaults: [task: mine]\n"})
    assert here("cluster=pair").run.spec.task.name == "mine"
    monkeypatch.chdir(tmp_path)
    assert here().run.spec.task.name == "resnet18"
    assert here("cluster=lab3").err.startswith("error: task: there is no task to launch")


def test_a_users_file_wins_over_the_shipped_one(here: Here) -> None:
    """And the run says so; `--config-dir` wins over both."""
    text = "defaults: [base]\ntransport: local\nnodes: {NAME: {}}\n"
    here.write({"conf/cluster/lab3.yaml": text.replace("NAME", "mine")})
    here.write({"given/cluster/lab3.yaml": text.replace("NAME", "given")})
    chosen = here("cluster=lab3", "task=mine").run
    assert [node.name for node in chosen.spec.nodes] == ["mine"]
    own = f"{here.folder}/conf/cluster/lab3.yaml"
    assert chosen.notes == (f"cluster/lab3: {own} (shadows {CONF}/cluster/lab3.yaml)",)
    chosen = here("cluster=lab3", "--config-dir", "given", "task=mine").run
    assert [node.name for node in chosen.spec.nodes] == ["given"]
    given = f"{here.folder}/given/cluster/lab3.yaml"
    assert chosen.notes == (f"cluster/lab3: {given} (shadows {own} and {CONF}/cluster/lab3.yaml)",)


def test_a_users_file_may_build_on_a_shipped_one(here: Here) -> None:
    """`defaults: [lab3]` takes all of it, and adds."""
    here.write({"conf/cluster/mine.yaml": "defaults: [lab3]\nmaster: null\nonly: [gpu2]\n"})
    (node,) = here("cluster=mine", "task=mine").run.spec.nodes
    assert (node.name, node.user, node.port, node.gpu_count) == ("gpu2", "alice", 2222, 4)


def test_a_users_own_primary_config(here: Here) -> None:
    """A runner.yaml of theirs is merged over the shipped one: what it does not say holds on."""
    defaults = "[runner_base, {cluster: pair}, {task: mine}, _self_]"
    here.write({"conf/runner.yaml": f"defaults: {defaults}\nlost_s: 60\n"})
    run = here("grace_s=3").run
    assert (run.spec.lost_s, run.spec.cluster, run.spec.task.name) == (60.0, "pair", "mine")
    assert run.spec.grace_s == 3.0
    assert here("rendezvous=c10d").run.spec.rendezvous.backend == "c10d"
    assert "a PyTorch job on every machine" in here("--help").out
    groups = "{cluster: pair}, {task: mine}"
    for defaults in (groups, f"{groups}, _self_", f"override hydra/job_logging: none, {groups}"):
        text = f"defaults: [{defaults}]\nhydra: {{verbose: false}}\ngrace_s: 2\n"
        here.write({"conf/runner.yaml": text})
        spec = here("rendezvous=etcd", "rendezvous.endpoint=h:1", "lost_s=9").run.spec
        assert (spec.cluster, spec.task.name, spec.grace_s) == ("pair", "mine", 2.0)
    here.write({"conf/more.yaml": "# @package _global_\ngrace_s: 3\nlost_s: 4\n"})
    for defaults, grace_s in (("more", 2.0), ("_self_, more", 3.0)):
        here.write({"conf/runner.yaml": f"defaults: [{groups}, {defaults}]\ngrace_s: 2\n"})
        assert (here().run.spec.grace_s, here().run.spec.lost_s) == (grace_s, 4.0)
    here.write({"conf/runner.yaml": "task: {script: other.py}\n"})
    assert here("cluster=pair", "task=mine").run.spec.task.target == "other.py"


@pytest.mark.parametrize(
    "cluster",
    [
        *("cluster/pair", "/cluster/pair", "cluster/pair@cluster", "/cluster: pair"),
        *("cluster@cluster: pair", "optional /cluster: pair", "override cluster: pair"),
    ],
)
def test_a_choice_in_a_primary_config_has_many_forms(here: Here, cluster: str) -> None:
    """Each replaces the shipped choice, whose nodes else join the user's."""
    here.write({"conf/runner.yaml": f"defaults: ['{cluster}', {{task: mine}}]\n"})
    if ":" in cluster:
        here.write({"conf/runner.yaml": f"defaults: [{{{cluster}}}, {{task: mine}}]\n"})
    spec = here().run.spec
    assert (spec.cluster, spec.nodes[0].name, len(spec.nodes)) == ("pair", "gpu1", 4)
    assert here("cluster=local").run.spec.cluster == "local"


def test_mistakes_in_a_users_primary_config(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is one message with the file, or with the variable that is not set."""
    monkeypatch.delenv("NOPE", raising=False)
    here.write({"conf/runner.yaml": "defaults: [cluster: '${oc.env:NOPE}', task: mine]"})
    assert here().err.startswith("error: defaults: NOPE is not set in this shell's environment")
    here.write({"conf/runner.yaml": "", "conf/experiment/big.yaml": "lost_s: 3"})
    assert "there is no experiment 'nope'; there are big\n" in here("+experiment=nope").err
    for text, message in {
        "defaults: {task: mine}": "conf/runner.yaml: defaults: must be a list",
        "- task": "conf/runner.yaml: must be a mapping of keys to values",
        "defaults: [runner]": "conf/runner.yaml: defaults: runner names this file itself",
        "defaults: [/runner@_here_]": "conf/runner.yaml: defaults: runner names this file itself",
        "defaults: [{task: nope}]": "conf/runner.yaml: there is no task 'nope'; there are",
        "cluster: pair": "conf/runner.yaml: cluster: pair: chooses no file so\n"
        "    under `defaults:` write `- cluster: pair`, with a space after the colon\n",
        "defaults: ['task:mine']": "conf/runner.yaml: task:mine: chooses no file so\n"
        "    under `defaults:` write `- task: mine`, with a space after the colon\n",
        "lost_s: [": "conf/runner.yaml:1:10: while parsing a flow node",
        "los_s: 1\ndefaults: [task: mine]": "conf/runner.yaml:1: los_s: there is no such key",
        "lost_s: x": "conf/runner.yaml:1: lost_s: must be a number, not 'x'",
    }.items():
        here.write({"conf/runner.yaml": text})
        said = here()
        assert (said.code, said.err.startswith(f"error: {message}")) == (2, True), said.err


@pytest.mark.parametrize("own", ["[a, b]", "a b", "${task.outputs}", "${oc.env:OWN}"])
def test_words_after_two_dashes_follow_those_of_the_yaml(
    own: str, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they are; in a sweep each run's. `task.extra_args=…` beside them is refused."""
    monkeypatch.setenv("OWN", "a b")
    here.write({"conf/task/own.yaml": f"{BASE}script: x\noutputs: [a, b]\nextra_args: {own}\n"})
    after = ["--", "--mine", "???", "a 'b'", "${x}", "lr=0.1"]
    run = here("task=own", "lost_s=9", *after).run
    assert run.spec.task.args == ("a", "b", *after[1:])
    assert run.overrides == ("task=own", "lost_s=9", *after)
    recorded = yaml.safe_load(run.config_yaml)
    task: Any = OmegaConf.to_container(OmegaConf.create(recorded).task, resolve=True)
    again = task["extra_args"]
    assert list(shlex.split(again) if isinstance(again, str) else again) == ["a", "b", *after[1:]]
    shown = yaml.safe_load(here("task=own", "--cfg", "job", *after).out)["task"]["extra_args"]
    assert shown == recorded["task"]["extra_args"]
    swept = here("-m", "task=own,mine", *after).runs
    assert [run.spec.task.args[-5:] for run in swept] == [tuple(after[1:])] * 2
    said = here("task=own", "task.extra_args=[c]", *after)
    assert (said.code, said.runs) == (2, [])
    assert "task.extra_args=[c]: words after `--` are arguments, too" in said.err
    assert here("task=own", "~task.extra_args", "--", "c").run.spec.task.args == ("c",)


def test_words_for_a_verb_are_those_that_reach_the_hosts(here: Here) -> None:
    """No task and no environment, whose values may be secret; an experiment may matter."""
    here.write({"conf/experiment/big.yaml": "# @package _global_\nlost_s: 60\n"})
    run = here(
        *("cluster=local", "cluster=pair", "task=mine", "task.env.TOKEN=hunter2", "run_id=r1"),
        *("task.extra_args=[a]", "detach=true", "cluster.env.KEY=hunter2", "lost_s=9"),
        *("cluster.nodes.gpu1.env.KEY=hunter2", "cluster.nodes.gpu1.port=2222"),
        *("~cluster.only", "cluster.workdir=/my disk", "+experiment=big", "hydra.verbose=true"),
        *("--config-dir", "conf"),
    ).run
    assert run.run_flags("r1") == (
        "--run r1 --cluster pair lost_s=9 cluster.nodes.gpu1.port=2222 '~cluster.only' "
        "'cluster.workdir=/my disk' +experiment=big --config-dir conf"
    )
    assert here("task=mine").run.selector == "--cluster local"


def test_nodes_take_overrides_without_a_plus(here: Here) -> None:
    """Also a node that only a range makes, and one that the command line adds."""
    run = here(
        *("cluster=pair", "task=mine", "cluster.nodes.gpu1.gpus=2"),
        *("cluster.nodes.gpu03.env.A=1", "+cluster.nodes.new.host=10.0.0.9"),
        *("cluster.nodes.new.gpus=1", "cluster.exclude=[gpu[04-04]]"),
    ).run
    nodes = [(node.name, node.host, node.gpu_count, node.env) for node in run.spec.nodes]
    assert nodes == [
        ("gpu1", "10.0.0.1", 2, {}),
        ("gpu02", "gpu02", 8, {}),
        ("gpu03", "gpu03", 8, {"A": "1"}),
        ("new", "10.0.0.9", 1, {}),
    ]


def test_the_master_is_the_host_of_c10ds_store(here: Here) -> None:
    """And no other node is."""
    run = here("cluster=pair", "task=mine", "rendezvous=c10d", "cluster.master=gpu03").run
    plan = build_plan(*assumed_facts(run.spec)[:2])
    hosts = {
        share.node: [word.rpartition("=")[2] for word in share.command if "is_host=" in word]
        for share in plan.nodes
    }
    assert hosts == {"gpu03": ["1"], "gpu1": ["0"], "gpu02": ["0"], "gpu04": ["0"]}
    (endpoint,) = {
        word for share in plan.nodes for word in share.command if "--rdzv_endpoint" in word
    }
    assert endpoint == "--rdzv_endpoint=gpu03:29500"


def test_ranges_need_no_quotes_for_hydra(here: Here) -> None:
    """Its grammar would take the brackets for a list."""
    run = here("cluster=pair", "task=mine", "cluster.only=gpu[02-03]").run
    assert [node.name for node in run.spec.nodes] == ["gpu02", "gpu03"]


@pytest.mark.parametrize("word", ["~task.args.lr", "~task.args", "~task.args.lr=0.1"])
def test_a_key_can_be_left_out(here: Here, word: str) -> None:
    """`~KEY`, also as the first word, and also where the schema has a default for the key."""
    run = here(word, "cluster=pair", "task=mine", "dry_run=offline").run
    assert run.spec.task == Task("mine", "script", "train.py", ())


def test_a_second_file_of_a_group_has_a_place_of_its_own(here: Here) -> None:
    """`+GROUP@PACKAGE=NAME` is Hydra's word for it; without a place it is refused."""
    here.write({"conf/task/quick.yaml": "# @package _global_\nlost_s: 7\n"})
    run = here("+task@_global_=quick", "cluster=pair", "task=mine").run
    assert (run.spec.lost_s, run.spec.task.name) == (7.0, "mine")


def test_a_mapping_of_nodes_adds_to_those_of_the_yaml(here: Here) -> None:
    """By Hydra's rule, which the run says, and how to use the new one alone."""
    run = here("cluster=pair", "task=mine", "cluster.nodes={h5: {host: 10.0.0.9}}").run
    assert [node.name for node in run.spec.nodes] == ["gpu1", "gpu02", "gpu03", "gpu04", "h5"]
    (note,) = run.notes
    assert note == (
        "cluster.nodes={…} adds to those of the YAML: gpu1, gpu[02-04], h5; cluster.only=[h5] uses "
        "these alone"
    )
    words = ("~cluster.nodes", "+cluster.nodes={h5: {}}")
    assert here("cluster=pair", "task=mine", *words).run.notes == ()


@pytest.mark.parametrize("nodes", ["", "{a: {}, b: {}}"])
def test_a_plan_for_this_machine_knows_it(here: Here, nodes: str) -> None:
    """A program that is not there is refused, as by the launch; several nodes meet at loopback."""
    here.write({"train.py": "", "tool/__main__.py": "", "empty/x.py": ""})
    words = ["cluster=local", *([f"cluster.nodes={nodes}"] if nodes else []), "dry_run=offline"]
    for script in ("train.py", "tool"):
        spec, facts, _ = assumed_facts(here(*words, f"task.script={script}").run.spec)
        plan = build_plan(spec, facts)
        assert (plan.master_addr, len(plan.nodes)) == ("127.0.0.1", 3 if nodes else 1)
    for script in ("nope.py", "empty"):
        with pytest.raises(NotReady, match=f"task.script: there is no file {script} in "):
            assumed_facts(here(*words, f"task.script={script}").run.spec)


def test_any_key_of_the_schema_can_be_left_out(here: Here) -> None:
    """Its default holds, whether the files set it, to null perhaps, or leave it out.

    All at once: Hydra takes one word after the other, and a composition costs 80 ms.
    """
    leaves = [
        (f"{section}.{option.name}".lstrip("."), option)
        for section, schema in SECTIONS.items()
        for option in dataclasses.fields(schema)
        if "NODE" not in section and option.metadata["legal"] != "see below"
    ]
    sets_all = "".join(f"{key.removeprefix('cluster.')}: null\n" for key in NULLABLE)
    here.write({"conf/cluster/nulls.yaml": f"defaults: [base]\nnodes: {{a: {{}}}}\n{sets_all}"})
    with open_composer() as composer:
        for cluster in ("pair", "nulls"):
            words = [f"cluster={cluster}", "task=mine", *(f"~{key}" for key, _ in leaves)]
            composed = yaml.safe_load(composer.yaml(words))
            for key, option in leaves:
                left = composed
                for part in key.split("."):
                    left = left.get(part, {}) if isinstance(left, dict) else left
                default = option.default
                assert left in ({}, [], default), (key, cluster, left)
        env = ("cluster=pair", "task=mine", "cluster.env.B=1", "cluster.env.A=${.B}")
        assert composer.compose(env).spec.env == {"A": "1", "B": "1"}


@pytest.mark.parametrize("page", ["configuration", "elastic", "tasks"])
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
        _, *words = shlex.split(line, comments=True)
        said = here(*words, "dry_run=offline")
        assert said.code == 0, (line, said.err)
        assert said.runs


def test_a_program_on_the_command_line_stands_alone(here: Here) -> None:
    """Nothing of the default task is kept; a chosen task keeps its own."""
    run = here("cluster=pair", "task.module=my.fit", "task.args.x=1").run
    assert run.spec.task == Task("fit", "module", "my.fit", ("--x", "1"))
    assert "-fit-" in run.spec.run_id
    run = here("cluster=pair", "task=mine", "task.script=other.py").run
    assert run.spec.task == Task("mine", "script", "other.py", ("--lr", "0.1"))
    assert run.notes == ()


def test_a_task_that_is_a_file_is_a_script(here: Here) -> None:
    """What was typed names a program, not a YAML file."""
    Path("lit.py").touch()
    said = here("cluster=pair", "task=lit.py")
    Path("lit.py").unlink()
    assert said.code == 2
    assert "there is no task 'lit.py'" in said.err
    assert "\n    a program's file is task.script=lit.py\n" in said.err
    assert here("cluster=pair", "task.script=lit.py").run.spec.task.target == "lit.py"


WORDS = {
    "unknown option": (
        ["cluster=lab9"],
        (
            "cluster=lab9: there is no cluster 'lab9'; there are base, lab3, local, pair\n"
            "    did you mean cluster=lab3?\n"
            "    looked in conf/cluster and {CONF}/cluster"
        ),
    ),
    "no such cluster": (
        ["cluster=nope"],
        (
            "cluster=nope: there is no cluster 'nope'; there are base, lab3, local, pair\n"
            "    `runner init --cluster nope` writes one\n"
            "    looked in conf/cluster and {CONF}/cluster"
        ),
    ),
    "misspelt group": (
        ["clustre=pair"],
        "clustre: there is no such key; near it: cluster, lost_s\n    did you mean cluster?",
    ),
    "misspelt key": (
        ["cluster=pair", "watch.stal_s=3", "+foo=1"],
        (
            "watch.stal_s: there is no such key; legal here: stall_s, action, metrics, stacks\n"
            "    did you mean watch.stall_s?\n"
            "error: foo: there is no such key\n"
            "    if it is for the program: task.args.foo=…"
        ),
    ),
    "replaced keys": (
        ["cluster=pair", "stop.grace_s=3", "on_disconnect=keep", "cluster.deploy=never"],
        (
            "stop: stop.grace_s is now grace_s\n"
            "    such as grace_s=30\n"
            "error: on_disconnect: on_disconnect is now disconnect_s\n"
            "    disconnect_s=never keeps a run going without a launch\n"
            "error: cluster.deploy: cluster.deploy is now cluster.project\n"
            "    null pushes the code; a path, such as `.`, does not"
        ),
    ),
    "raw logs": (
        ["cluster=pair", "logs.raw=true"],
        (
            "logs: logs.ranks is now console_ranks, and logs.raw is ui=raw\n"
            "    such as console_ranks=[0,3]"
        ),
    ),
    "keys of a section, at the top": (
        ["cluster=pair", "nnodes=2", "lr=0.1"],
        (
            "nnodes: there is no such key; near it: rendezvous, disconnect_s, progress\n"
            "    did you mean task.nnodes?\n"
            "error: lr: there is no such key; near it: cluster\n"
            "    if it is for the program: task.args.lr=…"
        ),
    ),
    "values of the wrong type": (
        ["cluster=pair", "relaunch.max=two", "lost_s=abc", "task.nnodes=0"],
        (
            "relaunch.max: must be a whole number, not 'two'\n"
            "error: lost_s: must be a number, not 'abc'\n"
            "error: task.nnodes: must be a whole number from 1, or auto, not 0"
        ),
    ),
    "a password, a user and a port in an address": (
        [
            "cluster=pair",
            "cluster.nodes.gpu1.host=ada:s3cret@10.0.0.1",
            "cluster.nodes.gpu02.host=ada@10.0.0.2",
            "cluster.nodes.gpu03.host=ada@10.0.0.3:22",
            "cluster.nodes.gpu04.addr=10.0.0.4:29500",
        ],
        (
            "cluster.nodes.gpu1.host: a password has no place here; hosts are logged in to with a "
            "key or an agent\n"
            "    host: 10.0.0.1, and cluster.ssh.key names the key\n"
            "error: cluster.nodes.gpu02.host: must be an address alone, not a user and a host\n"
            "    cluster.nodes.gpu02.user: ada, cluster.nodes.gpu02.host: 10.0.0.2\n"
            "error: cluster.nodes.gpu03.host: must be an address alone, not a user and a host "
            "and a port\n"
            "    cluster.nodes.gpu03.user: ada, cluster.nodes.gpu03.host: 10.0.0.3, "
            "cluster.nodes.gpu03.port: 22\n"
            "error: cluster.nodes.gpu04.addr: must be an address alone, not a host and a port"
        ),
    ),
    "misspelt node": (
        ["cluster=pair", "cluster.nodes.gpu2.gpus=4"],
        (
            "cluster.nodes.gpu2: there is no node gpu2; the nodes are gpu1, gpu02, gpu03, gpu04\n"
            "    did you mean cluster.nodes.gpu02?\n"
            "    +cluster.nodes.gpu2.host=ADDRESS adds one"
        ),
    ),
    "wrong type": (
        ["cluster.ssh.port=abc"],
        "cluster.ssh.port: must be a whole number, not 'abc'",
    ),
    "no bool": (["detach=ture"], "detach: must be true or false, not 'ture'"),
    "for the program": (
        ["task=mine", "task.lr=0.1"],
        "task.lr: there is no such key\n    if it is for the program: task.args.lr=…",
    ),
    "no mapping": (["cluster.ssh=4"], "cluster.ssh: takes a mapping of keys to values, not 4"),
    "list for a mapping": (
        ["task=mine", "task.args=[1]"],
        "task.args: a list is given where a mapping is expected, or a mapping for a list",
    ),
    "not set": (
        ["cluster.python=${oc.env:NOPE}", "cluster.workdir=${nope}"],
        (
            "cluster.python: NOPE is not set in this shell's environment\n"
            "    export NOPE=… first, or give a default: ${oc.env:NOPE,DEFAULT}\n"
            "error: cluster.workdir: interpolation key 'nope' not found\n"
            "    ${a.b} is the full key of another value, ${.b} a neighbour; ${X} of a shell is "
            "\\${X}"
        ),
    ),
    "grammar": (
        ["task.args.x=a (b)"],
        (
            "task.args.x=a (b): the value is not in the grammar of Hydra's overrides\n"
            "    quote text for Hydra, and the whole for the shell:\n"
            "      'task.args.x=\"a (b)\"'"
        ),
    ),
    "grammar in a list": (
        ["cluster.setup=[a (b)]"],
        (
            "cluster.setup=[a (b)]: the value is not in the grammar of Hydra's overrides\n"
            "    quote text for Hydra, and the whole for the shell:\n"
            "      'cluster.setup=[\"a (b)\", c]'"
        ),
    ),
    "no key": (
        ["cluster.env.1X=3"],
        (
            "cluster.env.1X=3: 'cluster.env.1X' is no key; keys are joined by dots, and such a "
            "part starts with a letter\n"
            "    set it in the YAML"
        ),
    ),
    "range as a key": (
        ["cluster.nodes.gpu[02-03].gpus=4"],
        (
            "cluster.nodes.gpu[02-03].gpus=4: a key cannot be a range\n"
            "    set one node, or edit the YAML"
        ),
    ),
    "no override": (
        ["check"],
        (
            "command line: 'check' is neither KEY=VALUE nor a flag\n"
            "    a verb comes first: runner check"
        ),
    ),
    "several values": (
        ["task.args.lr=1,2"],
        (
            "task.args.lr=1,2: several values need --multirun, which makes a run of each\n"
            "    as a list: 'task.args.lr=[1,2]'\n"
            "    as one text: 'task.args.lr=\"1,2\"'"
        ),
    ),
    "several values of a variable": (
        ["task.env.CUDA_VISIBLE_DEVICES=0,1"],
        (
            "task.env.CUDA_VISIBLE_DEVICES=0,1: several values need --multirun, which makes a run "
            "of each\n    as one text: 'task.env.CUDA_VISIBLE_DEVICES=\"0,1\"'"
        ),
    ),
    "several values of no key": (
        ["env.X=0,1"],
        (
            "env.X: there is no such key; near it: rerun, rendezvous\n"
            "    did you mean cluster.env or task.env?"
        ),
    ),
    "nothing to delete": (
        ["cluster=pair", "~cluster.nodes.gpu03"],
        (
            "~cluster.nodes.gpu03: the YAML has no node gpu03\n"
            "    leave a node out with cluster.exclude=[gpu03]"
        ),
    ),
    "an argument to take out that is not there": (
        ["cluster=pair", "~task.args.nope"],
        (
            "~task.args.nope: there is no task.args.nope to take out\n"
            "    `runner config` shows what there is"
        ),
    ),
    "a misspelt key to take out": (
        ["cluster=pair", "~detahc"],
        "~detahc: there is no such key; near it: detach, relaunch, task\n    did you mean detach?",
    ),
    "nothing to take out": (
        ["cluster=pair", "~"],
        "~: names no key\n    ~KEY takes a key out, such as ~task.args.lr",
    ),
    "no cluster": (
        ["cluster=null"],
        "cluster=null: cluster takes the name of a file; there are pair, lab3, local",
    ),
    "no rendezvous": (
        ["cluster=pair", "rendezvous=null"],
        (
            "rendezvous=null: rendezvous takes the name of a file; there are c10d, etcd, etcd-v2, "
            "standalone, static"
        ),
    ),
    "a second cluster": (
        ["+cluster=pair"],
        (
            "+cluster=pair: there is a cluster already\n"
            "    without a + it replaces the cluster: cluster=pair"
        ),
    ),
    "unknown flag": (
        ["--foo"],
        (
            "command line: there is no flag '--foo'\n"
            "    an argument of the program is task.args.foo=..., or comes after `--`\n"
            "    `runner --help` lists the flags"
        ),
    ),
    "two things at once": (
        ["--cfg", "job", "--multirun"],
        (
            "command line: argument --multirun/-m: not allowed with argument --cfg/-c\n"
            "    `runner --help` lists the flags"
        ),
    ),
    "nodes from more to fewer": (
        ["cluster=pair", 'task.nnodes="4:2"', "rendezvous=c10d"],
        (
            "task.nnodes: must be a number of nodes, or a range such as 2:4, not '4:2'\n"
            "    the fewest come first, from 1"
        ),
    ),
    "more nodes than listed": (
        ["cluster=pair", 'task.nnodes="2:5"', "rendezvous=c10d"],
        (
            "task.nnodes: 5 nodes are wanted, but there are 4: gpu1, gpu02, gpu03, gpu04\n"
            "    a range may go up to 4"
        ),
    ),
    "a range that YAML takes for a number": (
        ["cluster=pair", "task.nnodes=124", "rendezvous=c10d"],
        (
            "task.nnodes: 124 nodes are wanted, but there are 4: gpu1, gpu02, gpu03, gpu04\n"
            "    if 2:4 is meant, put it in quotes"
        ),
    ),
    "elastic and static": (
        ["cluster=pair", 'task.nnodes="2:4"'],
        (
            "task.nnodes: with static no node can join or leave, so a range of nodes makes no "
            "sense\n"
            "    choose rendezvous=c10d or etcd, or one number of nodes"
        ),
    ),
    "an etcd nowhere": (
        ["cluster=pair", "rendezvous=etcd"],
        (
            "rendezvous.endpoint: etcd needs an etcd server\n"
            "    set rendezvous.endpoint=HOST:PORT, or rendezvous.serve to a node that is to run "
            "one"
        ),
    ),
    "an etcd without a port": (
        ["cluster=pair", "rendezvous=etcd-v2", "rendezvous.endpoint=etcd1:99999"],
        "rendezvous.endpoint: must be HOST:PORT such as etcd1:2379, not 'etcd1:99999'",
    ),
    "an etcd on a node that is left out": (
        ["cluster=pair", "rendezvous=etcd", "rendezvous.serve=gpu04", "task.nnodes=2"],
        "rendezvous.serve: gpu04 is not among the nodes to use: gpu1, gpu02",
    ),
    "two of them": (
        [
            *("cluster=pair", "rendezvous=etcd"),
            *("rendezvous.endpoint=etcd1:2379", "rendezvous.serve=gpu1"),
        ],
        (
            "rendezvous.serve: both an endpoint and a node that serves one are set\n"
            "    rendezvous.endpoint=null removes the endpoint"
        ),
    ),
    "an etcd for nobody": (
        ["cluster=pair", "rendezvous=c10d", "rendezvous.endpoint=etcd1:2379"],
        "rendezvous.endpoint: c10d takes none\n    it is for rendezvous=etcd",
    ),
    "standalone with others": (
        ["cluster=pair", "rendezvous=standalone"],
        (
            "rendezvous.backend: standalone is for one node "
            "alone, and 4 are to be used\n"
            "    choose rendezvous=static or c10d, or set task.nnodes=1"
        ),
    ),
    "the host of c10d's store as an option": (
        ["cluster=pair", "rendezvous=c10d", "torchrun.rdzv_conf.is_host=1"],
        "torchrun.rdzv_conf.is_host: the plan decides that: cluster.master is the host",
    ),
    "a run that cannot be stopped": (
        ["cluster=pair", "torchrun.signals_to_handle=[SIGUSR1]"],
        "torchrun.signals_to_handle: SIGTERM must be among them: a run is stopped by it",
    ),
    "missing folder": (["--config-dir", "/no/conf"], "--config-dir: there is no folder /no/conf"),
}


@pytest.mark.parametrize("case", WORDS)
def test_what_is_wrong_on_the_command_line(case: str, here: Here) -> None:
    """One message that says where, what is legal and what next; exit 2, and no run."""
    words, text = WORDS[case]
    if not any(
        re.match(r"[~+]*task(=|$|\.(script|module|command|nope)\b)", word) for word in words
    ):
        words = ["task=mine", *words]
    said = here(*words)
    assert (said.code, said.runs, said.out) == (2, [], "")
    assert said.err == f"error: {text}\n".replace("{CONF}", str(CONF))


FILES = {
    "several things, all of them": (
        "backend: ncll\nnodez: {}\nssh:\n  usr: ada\nnodes:\n  a: {gpuz: 3}\n",
        [
            "conf/cluster/bad.yaml:4: cluster.ssh.usr: there is no such key",
            "    did you mean cluster.ssh.user?",
            "conf/cluster/bad.yaml:2: cluster.nodez: there is no such key",
            "    did you mean cluster.nodes?",
            "conf/cluster/bad.yaml:1: cluster.backend: 'ncll' is not legal",
            "    did you mean nccl?",
            "conf/cluster/bad.yaml:6: cluster.nodes.a.gpuz: there is no such key",
            "    did you mean cluster.nodes.a.gpus?",
        ],
    ),
    "wrong type": (
        "nodes: {a: {}}\nssh: {port: ssh}\n",
        ["conf/cluster/bad.yaml:2: cluster.ssh.port: must be a whole number, not 'ssh'"],
    ),
    "wrong types, all of them": (
        "nodes: [a]\nssh:\n  user: [ada]\n  port: ssh\n  connect_timeout: soon\npython:\n",
        [
            "conf/cluster/bad.yaml:1: cluster.nodes: takes a mapping of keys to values",
            "    such as nodes: {gpu1: {}, gpu2: {host: 192.168.1.110}}",
            "conf/cluster/bad.yaml:3: cluster.ssh.user: must be a text, not ['ada']",
            "conf/cluster/bad.yaml:4: cluster.ssh.port: must be a whole number, not 'ssh'",
            "conf/cluster/bad.yaml:5: cluster.ssh.connect_timeout: must be a number, not 'soon'",
            "conf/cluster/bad.yaml:6: cluster.python: must not be null",
        ],
    ),
    "syntax": (
        "nodes: [a\nbackend: gloo\n",
        [
            (
                "conf/cluster/bad.yaml:2:8: while parsing a flow sequence, expected ',' or ']', "
                "but got ':'"
            ),
            "    there: backend: gloo",
            "    a bracket is not closed, or a comma is missing",
        ],
    ),
    "key twice": (
        "nodes: {a: {}}\nnodes: {b: {}}\n",
        [
            "conf/cluster/bad.yaml:2:1: while constructing a mapping, found duplicate key nodes",
            "    there: nodes: {b: {}}",
        ],
    ),
    "wrong indentation": (
        "ssh:\n  user: ada\n port: 22\n",
        [
            "conf/cluster/bad.yaml:3:2: while parsing a block mapping, expected <block end>",
            "    there: port: 22",
            "    keys beside each other begin in one column",
        ],
    ),
    "a tab": (
        "ssh:\n\tuser: ada\n",
        [
            "conf/cluster/bad.yaml:2:1: while scanning for the next token, found character",
            "    there: user: ada",
            "    indent with spaces, not with tabs",
        ],
    ),
    "null": ("python:\n", ["conf/cluster/bad.yaml:1: cluster.python: must not be null"]),
    "no mapping": (
        "nodes: [a]\n",
        [
            "conf/cluster/bad.yaml:1: cluster.nodes: takes a mapping of keys to values",
            "    such as nodes: {gpu1: {}, gpu2: {host: 192.168.1.110}}",
        ],
    ),
    "no YAML mapping": (
        "3\n",
        ["conf/cluster/bad.yaml: cannot be read: invalid loaded object type: int"],
    ),
    "bad interpolation": (
        "python: ${oc.env:NOPE\n",
        ["conf/cluster/bad.yaml: python: missing BRACE_CLOSE at '<EOF>'"],
    ),
    "unset interpolation": (
        "nodes: {a: {}}\nenv: {A: '${oc.env:NOPE}'}\n",
        [
            "conf/cluster/bad.yaml:2: cluster.env.A: NOPE is not set in this shell's environment",
            "    export NOPE=… first, or give a default: ${oc.env:NOPE,DEFAULT}",
        ],
    ),
    "missing default": (
        "defaults: [bse]\n",
        [
            "conf/cluster/bad.yaml: there is no cluster 'bse'",
            "    did you mean cluster=base?",
            "    looked in conf/cluster",
        ],
    ),
    "defaults are no list": (
        "defaults: base\n",
        [
            "conf/cluster/bad.yaml: invalid defaults list in 'cluster/bad', defaults must be",
            "    HYDRA_FULL_ERROR=1",
        ],
    ),
}


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["rerun"], "rerun=latest"),
        (["rerun", "1123-1245"], "rerun=1123-1245"),
        (["mine"], "task=mine"),
        (["cluster=pair", "mine"], "task=mine"),
        (["cluster", "pair"], "cluster=pair"),
        (["pair", "task=mine"], "cluster=pair"),
        (["detach"], "detach=true"),
        (["watch"], "attach"),
    ],
)
def test_a_setting_without_its_key_or_value(
    words: list[str], meant: str, here: Here, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is meant is named, by the files and keys that there are."""
    assert here.folder == Path.cwd()
    assert main.main(words) == 2
    assert f"\n    did you mean {meant}?" in capsys.readouterr().err


def test_several_cluster_files_are_named_by_both(here: Here) -> None:
    """Chosen in a file as on the command line, which comes first; errors name the file."""
    here.write(
        {
            "conf/cluster/one.yaml": "defaults: [base]\nnodes: {a: {}}\n",
            "conf/cluster/more.yaml": "nodes: {b: {}}\n",
            "conf/runner.yaml": "defaults: [{cluster: [one, more]}, {task: mine}]\n",
        }
    )
    assert here().run.spec.cluster == "one+more"
    assert here("cluster=[more,one]").run.spec.cluster == "more+one"
    assert here("cluster=one").run.spec.cluster == "one"
    here.write({"conf/cluster/more.yaml": "nodes: {b: {gpuz: 1}}\n"})
    assert here().err.startswith("error: conf/cluster/more.yaml:1: cluster.nodes.b.gpuz: there is")


def test_what_is_wrong_in_several_files(here: Here) -> None:
    """A value of a wrong type in one hides none in another."""
    here.write(
        {
            "conf/cluster/bad.yaml": "defaults: [base]\nnodes: {a: {}}\nssh: {port: ssh}\n",
            "conf/task/bad.yaml": "defaults: [base]\nscript: a.py\nenv: [A]\n",
            "conf/runner.yaml": "defaults: [{cluster: bad}, {task: bad}]\nlost_s: soon\n",
        }
    )
    mapping = "takes a mapping of keys to values"
    said = here()
    assert (said.code, said.err.splitlines()) == (
        2,
        [
            "error: conf/cluster/bad.yaml:3: cluster.ssh.port: must be a whole number, not 'ssh'",
            f"error: conf/task/bad.yaml:3: task.env: {mapping}",
            "error: conf/runner.yaml:2: lost_s: must be a number, not 'soon'",
        ],
    )


def test_a_letter_is_a_flag_of_that_letter(here: Here, capsys: pytest.CaptureFixture[str]) -> None:
    """As other programs have it: no verb has short flags."""
    assert here.folder == Path.cwd()
    for words, flag in {("ps", "-a"): "--all", ("logs", "-f"): "--follow"}.items():
        assert main.main(list(words)) == 2
        assert f"\n    did you mean {flag}?\n" in capsys.readouterr().err


@pytest.mark.parametrize("case", FILES)
def test_what_is_wrong_in_a_file(case: str, here: Here) -> None:
    """The message names the file, and the line where YAML knows one; exit 2, and no run."""
    text, lines = FILES[case]
    here.write({"conf/cluster/bad.yaml": text})
    said = here("cluster=bad", "task=mine")
    assert (said.code, said.runs, said.out) == (2, [], "")
    printed = said.err.splitlines()
    assert len(printed) == len(lines)
    for line, wanted in zip(printed, lines, strict=True):
        assert line.removeprefix("error: ").startswith(wanted)


@pytest.mark.parametrize("start", ["", "~/", "cluster=", "--config-dir="])
def test_a_word_too_long_for_a_path(start: str, here: Here) -> None:
    """Looking for a file of that name fails; it is a mistake as any other."""
    said = here(f"{start}{'x' * 300}")
    assert (said.code, "fault" in said.err) == (2, False), said.err


def test_a_file_that_is_no_text(here: Here) -> None:
    """Its name is in the message."""
    here.write({"conf/cluster/bad.yaml": ""})
    (here.folder / "conf/cluster/bad.yaml").write_bytes(b"\xff\xfe")
    said = here("cluster=bad", "task=mine")
    wanted = "error: conf/cluster/bad.yaml: cannot be read: 'utf-8' codec can't decode byte 0xff"
    assert (said.code, said.err.startswith(wanted)) == (2, True)


def test_a_sweep_is_a_run_for_each_combination(here: Here) -> None:
    """Each with an id and a record of its own; the exit code is the first that is not 0."""
    said = here("task=mine", "task.args.lr=1,2", "cluster=pair", "-m", job=lambda _: 3)
    assert said.code == 3
    assert [run.spec.task.args for run in said.runs] == [("--lr", "1"), ("--lr", "2")]
    assert [run.overrides[1] for run in said.runs] == ["task.args.lr=1", "task.args.lr=2"]
    assert len({run.run_dir for run in said.runs}) == 2


def test_a_sweep_with_a_problem_starts_nothing(here: Here) -> None:
    """All runs are checked before the first."""
    said = here("task=mine", "cluster=pair", "cluster.backend=gloo,x", "-m")
    assert (said.code, said.runs) == (2, [])
    assert said.err == (
        "error: cluster.backend: 'x' is not legal; choose auto, nccl or gloo\n"
        "    in run 2: task=mine cluster=pair cluster.backend=x\n"
    )
    said = here("task=mine", "cluster=pair", "cluster.backend=x", "lost_s=20,30", "-m")
    assert said.err == "error: cluster.backend: 'x' is not legal; choose auto, nccl or gloo\n"


def test_a_file_that_glob_takes_in_is_named(here: Here) -> None:
    """By the words of its run: a schema is among the files of a group."""
    said = here("task=mine", "cluster=pair,base", "-m")
    assert said.code == 2
    assert "\n    in run 2: task=mine cluster=base\n" in said.err


def test_a_sweep_says_where_each_run_stands_in_it(here: Here) -> None:
    """Its id, the number of the run, and what not all runs have."""
    runs = here("task=mine", "cluster=pair", "task.args.lr=1,2", "lost_s=20", "-m").runs
    places = [run.sweep for run in runs]
    assert len({place.sweep for place in places if place}) == 1
    assert [(p.number, p.count, p.changes) for p in places if p] == [
        (1, 2, ("task.args.lr=1",)),
        (2, 2, ("task.args.lr=2",)),
    ]
    assert here("task=mine", "cluster=pair", "-m").run.sweep is None


def test_a_sweep_is_not_detached(here: Here) -> None:
    """Its runs would compete for the same GPUs; the message has the command to use."""
    words = ["--config-dir", "conf", "task=mine", "cluster=pair", "task.args.lr=1,2"]
    for detach in ("typed", "in YAML"):
        typed = ["detach=true"] if detach == "typed" else []
        if not typed:
            here.write({"conf/runner.yaml": "detach: true\n"})
        said = here(*words, *typed, "-m", "--", "a b")
        assert (said.code, said.runs) == (2, [])
        printed = re.fullmatch(
            "error: detach: the runs of a --multirun would all be started at once, on the same "
            "GPUs\n    to detach the sweep itself: nohup runner (.*) &\n",
            said.err,
        )
        assert printed, said
        runs = here(*shlex.split(printed[1])).runs
        assert [(run.spec.detach, run.spec.task.args) for run in runs] == [
            (False, ("--lr", lr, "a b")) for lr in "12"
        ]


def test_a_sweep_ends_with_a_table(here: Here) -> None:
    """What each run had of its own, and what became of it; a plan is not a success."""
    words = ("task=mine", "cluster=pair", "task.args.lr=1,2", "-m")
    said = here(*words, job=lambda run: 3 if "task.args.lr=1" in run.overrides else 0)
    names = [run.spec.run_id for run in said.runs]
    table = said.err.splitlines()[-4:]
    assert [line.split() for line in table[:3]] == [
        ["run", "differs", "in", "exit", "took"],
        [names[0], "task.args.lr=1", "3", "0.0", "s"],
        [names[1], "task.args.lr=2", "0", "0.0", "s"],
    ]
    assert table[3] == "1 of 2 runs succeeded"
    said = here(*words, "dry_run=offline")
    assert said.err.splitlines()[-1] == "2 of 2 runs could be planned, nothing was started"


def test_a_sweep_over_code_that_is_not_pushed_says_so(here: Here) -> None:
    """An edit reaches its later runs; a dry run has none."""
    words = ("task=mine", "cluster=pair", "task.args.lr=1,2", "-m")
    note = "note: an edit of the code reaches later runs of this sweep; cluster.project=null "
    assert here(*words, "cluster.project=.").err.startswith(note)
    assert note not in here(*words).err
    assert note not in here(*words, "cluster.project=.", "dry_run=offline").err


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("hydra/launcher=joblib", "one after the other"),
        ("hydra.launcher.n_jobs=2", "one after the other"),
        ("hydra/sweeper=optuna", "values joined by commas"),
        ("hydra.run.dir=/tmp/x", "run_dir=PATH/${run_id}"),
        ("hydra.sweep.dir=/tmp/x", "run_dir=PATH/${run_id}"),
        ("hydra.sweep.subdir=x", "run_dir=PATH/${run_id}"),
        ("hydra.job.chdir=true", "ranks work in a copy"),
        ("hydra.job.name=x", "run_id=NAME"),
        ("+hydra.job.env_set.A=1", "task.env.NAME=VALUE"),
        ("hydra.mode=MULTIRUN", "-m on the command line"),
    ],
)
def test_settings_of_hydra_without_effect_are_refused(word: str, hint: str, here: Here) -> None:
    """By name, with what takes their place."""
    said = here("task=mine", "cluster=pair", word)
    assert (said.code, said.runs) == (2, [])
    assert said.err.startswith(f"error: {word}: this setting of Hydra has no effect on a launch\n")
    assert hint in said.err


def test_a_folder_that_yaml_sets_for_hydra_is_refused(here: Here) -> None:
    """As one of the command line."""
    here.write({"conf/extra/own.yaml": "# @package _global_\nhydra: {run: {dir: /data}}\n"})
    said = here("+extra=own", "cluster=pair", "task.command=ls")
    assert (said.code, said.runs) == (2, [])
    assert "hydra.run.dir: /data: this setting of Hydra has no effect on a launch\n" in said.err


def test_settings_of_hydra_with_effect_are_not(here: Here) -> None:
    """Those that say what a sweep is, and where YAML is."""
    words = ("task=mine", "cluster=pair", "hydra/launcher=basic", "hydra.searchpath=[]")
    assert here(*words).code == 0


@pytest.mark.parametrize("key", ["runtime.output_dir", "run.dir", "sweep.dir"])
def test_the_output_folder_of_hydra_is_refused(key: str, here: Here) -> None:
    """It is not made, and the argument must not vanish."""
    value = f"${{hydra:{key}}}/x"
    said = here("task=mine", "cluster=pair", f"task.args.out={value}")
    assert (said.code, said.runs) == (2, [])
    assert said.err.startswith(f"error: task.args.out: ${{hydra:{key}}} has no value: ")
    assert "task.outputs" in said.err
    assert "${run_id}" in said.err
    here.write({"conf/task/out.yaml": f"defaults: [mine]\nargs: {{out: '{value}'}}\n"})
    assert "conf/task/out.yaml:2: task.args.out: " in here("task=out", "cluster=pair").err


def test_a_sweep_needs_folders_of_its_own(here: Here) -> None:
    """One run id for all would have each run write over the last."""
    said = here("task=mine", "lost_s=1,2", "run_id=one", "-m")
    assert (said.code, said.runs) == (2, [])
    assert said.err == (
        "error: run_dir: every run of a --multirun needs its own folder\n"
        "    leave out run_id and run_dir\n"
    )


@pytest.mark.parametrize(
    ("codes", "code", "started"),
    [((0, 0, 0), 0, 3), ((0, 1, 3), 1, 3), ((0, 130, 0), 130, 2), ((1, 5, 0), 5, 2)],
)
def test_a_sweep_ends_where_a_run_was_interrupted(
    codes: tuple[int, ...], code: int, started: int, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or where something of it could not be stopped; a failed run does not end it."""
    monkeypatch.setattr(main, "_compose_runs", lambda _: [SWEPT] * len(codes))
    left = iter(codes)
    said = here(job=lambda _: next(left))
    assert (said.code, len(said.runs)) == (code, started)


def test_errors_of_a_run_are_printed_once(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the exit code they carry, and the next run follows; Ctrl-C is 130, and the end."""

    def refuse(_: LaunchRequest) -> int:
        raise NotReady([Problem("gpu1", "no torch", "install it"), Problem("gpu2", "no python")])

    def interrupt(_: LaunchRequest) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "_compose_runs", lambda _: [SWEPT, SWEPT])
    said = here(job=refuse)
    text = "error: gpu1: no torch\n    install it\nerror: gpu2: no python\n"
    assert said.code == 3
    assert said.err == (
        f"run 1 of 2: task.args.lr=1\n{text}run 2 of 2: task.args.lr=1\n{text}"
        "  run  differs in      exit  took\n"
        "  r    task.args.lr=1  3     0.0 s\n"
        "  r    task.args.lr=1  3     0.0 s\n"
        "0 of 2 runs succeeded\n"
    )
    said = here(job=interrupt)
    assert (said.code, len(said.runs)) == (130, 1)
    assert said.err.endswith("not started\n  runner cluster=pair task.args.lr=1\n")


@pytest.mark.parametrize(
    "words",
    [
        "cluster=pair task=mine task.args.lr=1,0.2,0.3",
        "cluster=pair task=mine task.args.lr=1,2 lost_s=20,30",
        "cluster=pair task.script=train.py 'task.args.name=a,\"b c\"' -- --flag",
        "--config-dir conf cluster=pair task=mine task.nodes=[gpu1],[gpu02,gpu03],[gpu04]",
        "hydra.searchpath=[file://more] cluster=pair task=far task.args.lr=1,2,3",
    ],
)
def test_the_rest_of_a_sweep_starts_as_printed(words: str, here: Here) -> None:
    """What is printed after Ctrl-C are the very runs that were not started."""
    here.write({"more/task/far.yaml": "defaults: [base]\ncommand: ls\n"})
    asked = here("-m", *shlex.split(words)).runs
    assert len(asked) >= 2
    commands = commands_for(asked[1:])
    assert len(commands) == (1 if len(asked[1].sweep.changes) == 1 else len(asked) - 1)  # type: ignore[union-attr]
    again = [run for command in commands for run in here(*shlex.split(command)[1:]).runs]
    assert [run.spec.task for run in again] == [run.spec.task for run in asked[1:]]
    assert [run.spec.lost_s for run in again] == [run.spec.lost_s for run in asked[1:]]
    assert commands_for([]) == []


def test_main_hands_over_to_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the process ends with its exit code."""
    launch = ModuleType("runner.workflows.launch")
    monkeypatch.setattr(launch, "run", len, raising=False)
    monkeypatch.setitem(sys.modules, "runner.workflows.launch", launch)
    monkeypatch.setattr(main, "_compose_runs", lambda words: [words])
    monkeypatch.setattr(sys, "argv", ["runner", "a=1", "b=2"])
    assert main.main(["a=1", "b=2", "c=3"]) == 3
    with pytest.raises(SystemExit) as ended:
        main.entry()
    assert ended.value.code == 2


def test_the_version_is_the_packages(here: Here) -> None:
    """Said in two files, once in each way."""
    assert here("--version").out == f"runner {__version__}\n"


def test_an_interrupt_before_anything_was_started(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Is said, and is 130."""

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
    said = here("task=mine")
    os.chdir(here.folder)
    wanted = "error: the working directory is not there: No such file or directory\n"
    assert (said.code, said.err) == (2, wanted)
