"""From the words of a command line, and a folder of YAML, to runs: in this process."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from runner import __version__, cli
from runner.cli import compose_and, conf_folders, shipped
from runner.config import Composed, DryRun
from runner.core.errors import NotReady, Problem
from runner.core.spec import Task

CONF = Path(__file__).parents[2] / "conf"
MINE = {
    "conf/task/mine.yaml": "defaults: [base]\nscript: train.py\nargs: {lr: 0.1}\n",
    "conf/cluster/pair.yaml": (
        "defaults: [base]\nnodes:\n  gpu1: {host: 10.0.0.1}\n  gpu[02-04]: {gpus: 8}\n"
    ),
}
ROOT_KEYS = "cluster, task, dry_run, run_id, run_dir, ui, stop, lost_s, disconnect_s, logs"


@dataclass
class Said:
    """How a command line ended."""

    code: int
    runs: list[Composed]
    out: str
    err: str

    @property
    def run(self) -> Composed:
        """The only run."""
        assert self.code == 0, self.err
        (run,) = self.runs
        return run


class Here:
    """A user's folder, in which they stand."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys

    def write(self, files: dict[str, str]) -> None:
        """Write files of the user."""
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def files(self) -> set[str]:
        """Return all there is in the folder."""
        return {str(path.relative_to(self.folder)) for path in self.folder.rglob("*")}

    def __call__(self, *words: str, job: Callable[[Composed], int] = lambda _: 0) -> Said:
        """Do `python -m runner WORDS`, with `job` in place of a launch."""
        runs: list[Composed] = []

        def note(composed: Composed) -> int:
            runs.append(composed)
            return job(composed)

        code = compose_and(words, note)
        captured = self._capsys.readouterr()
        return Said(code, runs, captured.out, captured.err)


@pytest.fixture
def here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Here]:
    """A folder with a task and a cluster of the user's own, in which the test stands."""
    here = Here(tmp_path / "project", capsys)
    here.write(MINE)
    monkeypatch.chdir(here.folder)
    monkeypatch.setenv("PWD", str(here.folder))
    # `--info` has Hydra log to a standard output that ends with the test.
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield here
    root.setLevel(level)
    root.handlers[:] = handlers


def test_what_is_composed_is_plain_data(here: Here) -> None:
    """A spec, the options of the run, and what to record of where they came from."""
    words = ("cluster=pair", "task=mine", "run_id=r1", "dry_run=offline", "task.args.lr=0.2")
    run = here(*words).run
    assert [node.name for node in run.spec.nodes] == ["gpu1", "gpu02", "gpu03", "gpu04"]
    assert run.spec.task == Task("mine", "script", "train.py", ("--lr", "0.2"))
    assert (run.spec.cluster, run.spec.project) == ("pair", str(here.folder))
    assert (run.dry_run, run.dry_run == "offline") == (DryRun.OFFLINE, True)
    assert run.run_dir == here.folder / "runs" / "r1"
    assert run.sources == (
        f"runner: {CONF}/runner.yaml",
        f"cluster/pair: {here.folder}/conf/cluster/pair.yaml",
        f"task/mine: {here.folder}/conf/task/mine.yaml",
    )
    assert (run.notes, run.task_option, run.overrides) == ((), "mine", words)


def test_the_record_keeps_interpolations_and_the_run_id(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `${oc.env:…}` stood for is in the spec, not in the file."""
    monkeypatch.setenv("TOKEN_FILE", "/home/ada/secret")
    run = here("cluster=pair", "task=mine", "task.args.file=${oc.env:TOKEN_FILE}").run
    assert run.spec.task.args == ("--lr", "0.1", "--file", "/home/ada/secret")
    record = yaml.safe_load(run.config_yaml)
    assert record["task"]["args"]["file"] == "${oc.env:TOKEN_FILE}"
    assert record["run_dir"] == "runs/${run_id}"
    assert record["run_id"] == run.spec.run_id
    assert run.run_dir == here.folder / "runs" / run.spec.run_id
    assert "hydra" not in record


def test_nothing_is_written(here: Here) -> None:
    """No output folders, no logs; not by a run, a dry run, a sweep or a look at the configuration."""
    before = here.files()
    for words in (
        ("task=mine",),
        ("task=mine", "dry_run=true"),
        ("task=mine", "task.args.lr=1,2", "-m"),
        ("task=mine", "--cfg", "job"),
        ("task=mine", "--info", "defaults"),
    ):
        assert here(*words).code == 0
    assert here.files() == before


@pytest.mark.parametrize("group", ["cluster", "task"])
def test_every_shipped_option_composes(group: str, here: Here) -> None:
    """From any folder, with nothing else said."""
    options = sorted(path.stem for path in (CONF / group).glob("*.yaml"))
    assert options
    for option in options:
        other = "cluster=local" if group == "task" else "task=mine"
        assert here(f"{group}={option}", other).code == 0


def test_the_example_shows_every_key_of_a_cluster(here: Here) -> None:
    """Who copies lab3.yaml sees all there is."""
    shown = yaml.safe_load((CONF / "cluster" / "lab3.yaml").read_text())
    whole = yaml.safe_load(here("task=mine", "--cfg", "job", "--package", "cluster").out)
    assert set(shown) == {"defaults", *whole}
    assert set(shown["ssh"]) == set(whole["ssh"])


def test_folders_of_yaml_in_order(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those given, the nearest of the user's own upwards, the shipped one; each of them once."""
    mine = here.folder / "conf"
    here.write({"a/b/conf/other.yaml": "", "a/c/conf/task/x.yaml": "", "given/x.yaml": ""})
    monkeypatch.chdir(here.folder / "a" / "b")
    assert conf_folders([]) == [mine, CONF]
    assert conf_folders(["../../given", str(mine)]) == [Path.cwd() / "../../given", mine, CONF]
    monkeypatch.chdir(here.folder / "a" / "c")
    assert conf_folders([]) == [Path.cwd() / "conf", CONF]
    monkeypatch.chdir(CONF / "cluster")
    assert conf_folders([]) == [CONF]
    assert shipped() == CONF


def test_a_users_file_wins_over_the_shipped_one(here: Here) -> None:
    """And the run says so; `--config-dir` wins over both."""
    text = "defaults: [base]\ntransport: local\nnodes: {NAME: {}}\n"
    here.write({"conf/cluster/lab3.yaml": text.replace("NAME", "mine")})
    here.write({"given/cluster/lab3.yaml": text.replace("NAME", "given")})
    chosen = here("cluster=lab3", "task=mine").run
    assert [node.name for node in chosen.spec.nodes] == ["mine"]
    own = f"{here.folder}/conf/cluster/lab3.yaml"
    assert chosen.notes == (f"cluster/lab3: {own} (shadows the shipped one)",)
    chosen = here("cluster=lab3", "--config-dir", "given", "task=mine").run
    assert [node.name for node in chosen.spec.nodes] == ["given"]
    given = f"{here.folder}/given/cluster/lab3.yaml"
    assert chosen.notes == (f"cluster/lab3: {given} (shadows {own} and the shipped one)",)


def test_a_users_file_may_build_on_a_shipped_one(here: Here) -> None:
    """`defaults: [lab3]` takes all of it, and adds."""
    here.write({"conf/cluster/mine.yaml": "defaults: [lab3]\nmaster: null\nonly: [gpu2]\n"})
    (node,) = here("cluster=mine", "task=mine").run.spec.nodes
    assert (node.name, node.user, node.port, node.gpu_count) == ("gpu2", "alice", 2222, 4)


def test_a_users_own_primary_config(here: Here) -> None:
    """A runner.yaml of theirs sets defaults for all runs; without the schema it is refused."""
    defaults = "[runner_base, {cluster: pair}, {task: mine}, _self_]"
    here.write({"conf/runner.yaml": f"defaults: {defaults}\nlost_s: 60\n"})
    run = here().run
    assert (run.spec.lost_s, run.spec.cluster, run.spec.task.name) == (60.0, "pair", "mine")
    here.write({"conf/runner.yaml": "defaults: [{cluster: pair}, {task: mine}]\n"})
    said = here()
    wanted = (
        f"error: {here.folder}/conf/runner.yaml: its defaults list must begin with runner_base\n"
    )
    assert (said.code, said.err) == (2, wanted)


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


@pytest.mark.parametrize("word", ["cluster.only=gpu[02-03]", "cluster.only=[gpu02,gpu[03-03]]"])
def test_ranges_need_no_quotes_for_hydra(word: str, here: Here) -> None:
    """Its grammar would take the brackets for a list."""
    names = [node.name for node in here("cluster=pair", "task=mine", word).run.spec.nodes]
    assert names == ["gpu02", "gpu03"]


def test_a_program_on_the_command_line_stands_alone(here: Here) -> None:
    """Nothing of the default task is kept, and the run says so; a chosen task keeps its own."""
    run = here("cluster=pair", "task.module=my.fit", "task.args.x=1").run
    assert run.spec.task == Task("fit", "module", "my.fit", ("--x", "1"))
    assert run.notes == (
        "task.module without task=NAME: the default task is left out, as task=base does",
    )
    assert "-fit-" in run.spec.run_id
    run = here("cluster=pair", "task=mine", "task.script=other.py").run
    assert run.spec.task == Task("mine", "script", "other.py", ("--lr", "0.1"))
    assert run.notes == ()


WORDS = {
    "unknown option": (
        ["cluster=lab9"],
        (
            "cluster=lab9: there is no cluster 'lab9'; there are base, lab3, local, pair\n"
            "    did you mean cluster=lab3?\n"
            "    looked in conf/cluster and {CONF}/cluster"
        ),
    ),
    "misspelt group": (
        ["clustre=pair"],
        f"clustre: there is no such key; legal here: {ROOT_KEYS}\n    did you mean cluster?",
    ),
    "misspelt key": (
        ["cluster=pair", "stop.grace=3", "+foo=1"],
        (
            "stop.grace: there is no such key; legal here: grace_s\n"
            "    did you mean stop.grace_s?\n"
            f"error: foo: there is no such key; legal here: {ROOT_KEYS}"
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
    "null": (["cluster.python=null"], "cluster.python: must not be null"),
    "no mapping": (["cluster.ssh=4"], "cluster.ssh: takes a mapping of keys to values, not 4"),
    "list for a mapping": (
        ["task=mine", "task.args=[1]"],
        "task.args: a list stands for a mapping here, or a mapping for a list",
    ),
    "not set": (
        ["cluster.python=${oc.env:NOPE}", "cluster.workdir=${nope}"],
        (
            "cluster.python: NOPE is not set in this shell's environment\n"
            "    export NOPE=… first, or give a default: ${oc.env:NOPE,DEFAULT}\n"
            "error: cluster.workdir: interpolation key 'nope' not found\n"
            "    ${a.b} is the full key of another value, ${.b} a neighbour"
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
            "cluster.env.1X=3: 'cluster.env.1X' is no key; keys are joined by dots, and such a part "
            "starts with a letter\n"
            "    what has no such key can be set in YAML only"
        ),
    ),
    "range as a key": (
        ["cluster.nodes.gpu[02-03].gpus=4"],
        (
            "cluster.nodes.gpu[02-03].gpus=4: a key cannot be a range\n"
            "    set one node, or edit the YAML; key[index] is key.index"
        ),
    ),
    "no override": (
        ["check"],
        "check: neither KEY=VALUE nor a flag\n    python -m runner --help shows what there is",
    ),
    "several values": (
        ["task.args.lr=1,2"],
        (
            "task.args.lr=1,2: several values need --multirun, which makes a run of each\n"
            "    as a list: 'task.args.lr=[1,2]'\n"
            "    as one text: 'task.args.lr=\"1,2\"'"
        ),
    ),
    "nothing to delete": (
        ["cluster=pair", "~cluster.nodes.gpu03"],
        (
            "~cluster.nodes.gpu03: could not delete from config. 'cluster.nodes.gpu03' does not exist\n"
            "    leave a node out with cluster.exclude=[gpu03]"
        ),
    ),
    "unknown flag": (
        ["--foo"],
        (
            "command line: unrecognized arguments: --foo\n"
            "    python -m runner --help shows what there is"
        ),
    ),
    "two things at once": (
        ["--cfg", "job", "--multirun"],
        (
            "command line: argument --multirun/-m: not allowed with argument --cfg/-c\n"
            "    python -m runner --help shows what there is"
        ),
    ),
    "missing folder": (["--config-dir", "/no/conf"], "--config-dir: there is no folder /no/conf"),
}


@pytest.mark.parametrize("case", WORDS)
def test_what_is_wrong_on_the_command_line(case: str, here: Here) -> None:
    """One message that says where, what is legal and what next; exit 2, and no run."""
    words, text = WORDS[case]
    if not any(word.startswith("task") for word in words):
        words = ["task=mine", *words]
    said = here(*words)
    assert (said.code, said.runs, said.out) == (2, [], "")
    assert said.err == f"error: {text}\n".replace("{CONF}", str(CONF))


FILES = {
    "misspelt keys, all of them": (
        "defaults: [base]\nnodez: {}\nssh:\n  usr: ada\nnodes:\n  a: {gpuz: 3}\n",
        [
            "conf/cluster/bad.yaml:4: cluster.ssh.usr: there is no such key",
            "    did you mean cluster.ssh.user?",
            "conf/cluster/bad.yaml:2: cluster.nodez: there is no such key",
            "    did you mean cluster.nodes?",
            "conf/cluster/bad.yaml:6: cluster.nodes.a.gpuz: there is no such key",
            "    did you mean cluster.nodes.a.gpus?",
        ],
    ),
    "wrong value": (
        "nodes: {a: {}}\nbackend: ncll\n",
        ["conf/cluster/bad.yaml:2: cluster.backend: 'ncll' is not legal", "    did you mean nccl?"],
    ),
    "wrong type": (
        "nodes: {a: {}}\nssh: {port: ssh}\n",
        ["conf/cluster/bad.yaml:2: cluster.ssh.port: must be a whole number, not 'ssh'"],
    ),
    "syntax": (
        "nodes: {a: {}\nbackend: gloo\n",
        [
            (
                "conf/cluster/bad.yaml:2: while parsing a flow mapping, expected ',' or '}', "
                "but got ':'"
            )
        ],
    ),
    "key twice": (
        "nodes: {a: {}}\nnodes: {b: {}}\n",
        ["conf/cluster/bad.yaml:2: while constructing a mapping, found duplicate key nodes"],
    ),
    "no mapping": (
        "nodes: [a]\n",
        ["conf/cluster/bad.yaml: a list stands for a mapping here, or a mapping for a list"],
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
            "conf/cluster/bad.yaml: invalid defaults list in 'cluster/bad', defaults must be a list",
            "    HYDRA_FULL_ERROR=1",
        ],
    ),
}


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


def test_a_file_that_is_no_text(here: Here) -> None:
    """Its name is in the message."""
    (here.folder / "conf/cluster/bad.yaml").write_bytes(b"\xff\xfe")
    said = here("cluster=bad", "task=mine")
    wanted = "error: conf/cluster/bad.yaml: cannot be read: 'utf-8' codec can't decode byte 0xff"
    assert (said.code, said.err.startswith(wanted)) == (2, True)


def test_a_sweep_is_a_run_for_each_combination(here: Here) -> None:
    """Each with an id and a record of its own; the exit code is the first that is not 0."""
    codes = iter([0, 1, 3])
    words = ("cluster=pair", "task=mine", "task.args.lr=1,2,3", "--multirun")
    said = here(*words, job=lambda _: next(codes))
    assert said.code == 1
    assert [run.spec.task.args for run in said.runs] == [("--lr", n) for n in "123"]
    assert [run.overrides[-1] for run in said.runs] == [f"task.args.lr={n}" for n in "123"]
    assert len({run.run_dir for run in said.runs}) == 3


@pytest.mark.parametrize("code", [5, 130, 143])
def test_a_sweep_ends_where_a_run_was_interrupted(code: int, here: Here) -> None:
    """Or where something of it could not be stopped."""
    said = here("task.script=a.py,b.py", "cluster=pair", "-m", job=lambda _: code)
    assert (said.code, len(said.runs)) == (code, 1)


def test_a_sweep_with_a_problem_starts_nothing(here: Here) -> None:
    """All runs are checked before the first; each problem is told once."""
    words = ("cluster=pair", "task=mine", "cluster.backend=gloo,x", "task.args.lr=1,2", "-m")
    said = here(*words)
    assert (said.code, said.runs) == (2, [])
    assert said.err == "error: cluster.backend: 'x' is not legal; choose auto, nccl or gloo\n"
    said = here("task=mine", "task.args.lr=1,2", "run_id=one", "-m")
    assert (said.code, said.runs) == (2, [])
    assert said.err == (
        "error: run_dir: every run of a --multirun needs a folder of its own\n"
        "    leave out run_id and run_dir\n"
    )


def test_help_tells_what_there_is(here: Here) -> None:
    """Our own words, with the groups as they are here."""
    said = here("task=mine", "--help")
    assert said.code == 0
    assert said.out.startswith("Starts a PyTorch job on every machine of a cluster")
    assert "cluster: base, lab3, local, pair\n" in said.out
    assert "--config-dir DIR" in said.out
    assert here("--hydra-help").out.startswith("Hydra (")


def test_the_configuration_can_be_looked_at(here: Here) -> None:
    """As YAML, whole or in part; a part that is not there is exit 2."""
    said = here("cluster=pair", "task=mine", "--cfg", "job", "--package", "task")
    assert (said.code, yaml.safe_load(said.out)["args"]) == (0, {"lr": 0.1})
    said = here("task=mine", "--cfg", "job", "--package", "nope")
    assert (said.code, said.err) == (2, "package 'nope' not found in config\n")


def test_the_search_order_can_be_looked_at(here: Here) -> None:
    """`--info searchpath` shows the folders in the order that holds."""
    here.write({"given/task/x.yaml": ""})
    lines = here("task=mine", "--config-dir", "given", "--info", "searchpath").out.splitlines()
    paths = [line.split("|")[2].strip() for line in lines if "file://" in line]
    assert paths == [
        f"file://{path}" for path in (here.folder / "given", here.folder / "conf", CONF)
    ]


def test_shell_completion(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """It knows the user's options and nodes."""
    monkeypatch.setenv("COMP_LINE", "runner task=mine cluster=p")
    assert here("--shell-completion", "query=bash").out == "cluster=pair\n"


def test_the_version_is_the_packages(here: Here) -> None:
    """Said in two files, once in each way."""
    assert here("--version").out == f"runner {__version__}\n"
    assert f'version = "{__version__}"' in (CONF.parent / "pyproject.toml").read_text()


def test_errors_of_a_run_are_printed_once(here: Here) -> None:
    """With the exit code they carry; Ctrl-C is 130 wherever it comes."""

    def refuse(_: Composed) -> int:
        raise NotReady([Problem("gpu1", "no torch", "install it"), Problem("gpu2", "no python")])

    def interrupt(_: Composed) -> int:
        raise KeyboardInterrupt

    said = here("task=mine", job=refuse)
    assert (said.code, said.err) == (
        3,
        "error: gpu1: no torch\n    install it\nerror: gpu2: no python\n",
    )
    assert here("task=mine", job=interrupt).code == 130


def test_an_interrupt_before_anything_was_started(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Is said, and is 130."""

    def interrupt(_: object) -> list[Path]:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "conf_folders", interrupt)
    said = here("task=mine")
    assert (said.code, said.err) == (130, "error: interrupted; nothing was started\n")


def test_main_hands_over_to_the_launch(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """And returns its exit code."""
    launch = ModuleType("runner.control.launch")
    monkeypatch.setattr(launch, "run", lambda run: len(run.spec.nodes), raising=False)
    monkeypatch.setitem(sys.modules, "runner.control.launch", launch)
    assert here.folder == Path.cwd()
    assert cli.main(["cluster=pair", "task=mine"]) == 4
    monkeypatch.setattr(sys, "argv", ["runner", "cluster=pair", "task=mine"])
    with pytest.raises(SystemExit) as ended:
        cli.entry()
    assert ended.value.code == 4


def test_a_working_directory_that_is_gone(here: Here, tmp_path: Path) -> None:
    """Is exit 2 with a message, as everything else."""
    (tmp_path / "gone").mkdir()
    os.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    said = here("task=mine")
    os.chdir(here.folder)
    wanted = "error: the working directory is not there: No such file or directory\n"
    assert (said.code, said.err) == (2, wanted)
