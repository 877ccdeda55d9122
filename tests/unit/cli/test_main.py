"""The words of a verb: flags, overrides as a launch takes them, and one subject."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from runner import verbs
from runner.cli.completion.query import candidates
from runner.cli.main import main
from runner.cli.parser import VerbParser, launch_parser
from runner.cli.translation import NO_COUNTERPART, on_the_page
from runner.cli.verb import load_verb, verb_names
from runner.config.overrides import is_override
from runner.core.errors import ConfigError

CLUSTER = """\
defaults: [base]
transport: local
nodes: {gpu-01: {}, my-box: {}}
env: {A: "1"}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder whose nodes have hyphens."""
    for name, text in {
        "cluster/hy.yaml": CLUSTER,
        "task/mine.yaml": "defaults: [base]\nscript: train.py\nargs: {lr: 0.1, steps: 3}\n",
    }.items():
        file = tmp_path / "conf" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def values(name: str, *words: str) -> dict[str, Any]:
    """What a verb's function is given for these words."""
    return VerbParser(load_verb(name)).values(words)


def takers() -> list[tuple[str, str]]:
    """Each flag that takes a value, and its verb; "" for those of a launch."""
    found = [
        (name, option.flag)
        for name in verb_names()
        for option in load_verb(name).options
        if option.default is not False
    ]
    return [*found, ("", "--cfg"), ("", "-c"), ("", "--config-dir"), ("", "--package")]


@pytest.mark.parametrize(("name", "flag"), takers())
def test_a_flag_without_its_value_is_shown_one(name: str, flag: str) -> None:
    """An example that the verb's parser takes, in our words."""
    parser = VerbParser(load_verb(name)) if name else launch_parser()
    with pytest.raises(ConfigError) as caught:
        parser.parse([flag])
    (problem,) = caught.value.problems
    needs, _, example = problem.message.partition(", such as: ")
    assert needs == f"{'--cfg' if flag == '-c' else flag} needs a value"
    assert example.startswith(f"{parser.prog} -")
    words = shlex.split(example.removeprefix(parser.prog))
    assert words[1] != "VALUE"
    assert words[1] in str(parser.parse(words))


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What `python -m runner WORDS` prints; it succeeds."""
    assert main(words) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "current", "found"),
    [
        (["--cluster"], "h", ["hy"]),
        ([], "--cluster=h", ["--cluster=hy"]),
        (["kill", "--cluster"], "h", ["hy"]),
        (["status"], "--al", ["--all"]),
        (["--config-dir=more"], "cluster=ne", ["cluster=new"]),
        (["ps", "--config-dir", "more", "--cluster"], "ne", ["new"]),
    ],
)
def test_words_are_completed_as_they_are_read(
    folder: Path, words: list[str], current: str, found: list[str]
) -> None:
    """Flags in both forms, of launches too; other names of verbs."""
    (folder / "more" / "cluster").mkdir(parents=True)
    (folder / "more" / "cluster" / "new.yaml").write_text(CLUSTER)
    assert candidates(words, current) == found


def test_runs_on_record_anywhere_are_completed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the index, too; a sweep is no run."""
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    for file in ("runs/here/plan.json", "state/runner/runs/there/plan.json", "runs/sweep/s.json"):
        (folder / file).parent.mkdir(parents=True)
        (folder / file).write_text("{}")
    assert set(candidates(["logs", "--run"], "")) == {"here", "there"}
    assert candidates(["top"], "th") == ["there"]
    assert candidates(["top"], "hy")[0] == "hy"


def test_a_cluster_is_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    """A launch refuses a second one as verbs do."""
    for words in (["task=mine"], ["ps"]):
        assert main([*words, "--cluster", "hy", "--cluster", "hy"]) == 2
        assert "--cluster is given twice" in capsys.readouterr().err


@pytest.mark.parametrize(
    "word",
    [
        *("a=1", "cluster.nodes.my-box.host=10.0.0.5", "~task.args.lr", "+a.b=1", "++a=b c"),
        *("~cluster", "hydra/job_logging=none", "task@x=y", "a="),
    ],
)
def test_an_override_is_one_in_verbs_as_in_launches(word: str) -> None:
    """Anything with a key and `=`, and anything that begins with ~ or +."""
    assert is_override(word)
    assert values("config", word, "--set", "b=2")["set_"] == ["b=2", word]
    assert values("explain", "task", word)["set_"] == [word]


@pytest.mark.parametrize("word", ["latest", "train.py", "echo a=b", "-x=1", "--set=a=1"])
def test_other_words_are_no_overrides(word: str) -> None:
    """Such as lines of shell, and flags."""
    assert not is_override(word)


def test_nodes_with_a_hyphen_take_overrides(capsys: pytest.CaptureFixture[str]) -> None:
    """In a launch, and in every verb."""
    words = ("cluster=hy", "task=mine", "cluster.nodes.my-box.addr=10.0.0.5")
    plan = printed(capsys, *words, "dry_run=offline")
    assert "meeting at " in plan
    nodes = json.loads(printed(capsys, "config", *words, "--key", "cluster.nodes", "--json"))
    assert nodes == {"gpu-01": {}, "my-box": {"addr": "10.0.0.5"}}
    origin = printed(capsys, "explain", "cluster.nodes.my-box.addr", *words)
    assert origin.startswith("cluster.nodes.my-box.addr: 10.0.0.5\n")


def test_nodes_in_notes_are_ranges(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In those of the plan, and in what is assumed."""
    text = "defaults: [base]\nnodes: {'gpu[01-16]': {}}\n"
    (folder / "conf" / "cluster" / "big.yaml").write_text(text)
    shown = printed(capsys, "cluster=big", "task=mine", "dry_run=offline")
    assert "#   no GPU on gpu[01-16] (gpus is auto)\n" in shown
    assert "#   note: the GPUs of gpu[01-16] are found at launch: 1 rank each" in shown


def test_a_key_can_be_taken_out(capsys: pytest.CaptureFixture[str]) -> None:
    """As the first word, in a verb, and for a whole part of the schema: its default holds."""
    words = ("cluster=hy", "task=mine", "dry_run=offline")
    assert " --steps 3\n" in printed(capsys, "~task.args.lr", *words)
    assert "--lr" not in printed(capsys, "~task.args.lr", *words)
    assert printed(capsys, "config", "task.args", "~task.args.lr", *words) == "steps: 3\n"
    assert "train.py\n" in printed(capsys, "~task.args", *words)
    for key in ("cluster.env", "cluster.host_python", "watch", "detach", "run_dir"):
        assert "train.py" in printed(capsys, f"~{key}", *words), key


def test_words_after_two_dashes_are_the_programs(capsys: pytest.CaptureFixture[str]) -> None:
    """After `task.args`, whatever they look like; a verb has no program to give them to."""
    words = ("cluster=hy", "task=mine", "dry_run=offline")
    plan = printed(capsys, *words, "--", "foo=bar", "--lr", "0.2", "--", "ps", "-m", "${run_id}")
    own = " train.py --lr 0.1 --steps 3 foo=bar --lr 0.2 -- ps -m"
    assert f"{own} '$${{run_id}}'\n" in plan
    assert "train.py --lr 0.1 --steps 3 train.py" in printed(capsys, *words, "--", "train.py")
    assert main((*words, "--")) == 0
    assert main(("config", *words, "--", "x")) == 2


def test_a_path_below_a_home_folder_needs_no_quotes(capsys: pytest.CaptureFixture[str]) -> None:
    """As the value of a key; `~` alone still takes a key out."""
    words = ("cluster=hy", "cluster.env.DATA=~/data", "+cluster.env.HERS=~ada", "~cluster.env.A")
    assert printed(capsys, "config", "cluster.env", *words) == "DATA: ~/data\nHERS: ~ada\n"


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What `python -m runner WORDS` says of what is wrong with them."""
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def test_words_that_other_tools_have(capsys: pytest.CaptureFixture[str]) -> None:
    """Some work; for others the word here is named, by meaning before spelling."""
    launch = ("cluster=hy", "task=mine", "dry_run=offline", "run_id=r")
    plan = printed(capsys, *launch)
    assert printed(capsys, "run", *launch) == plan
    assert printed(capsys, "launch", "--cluster=hy", *launch[1:]) == plan
    assert main(("status", "--help")) == 0
    assert capsys.readouterr().out.startswith("List the runs on the cluster's hosts.")
    assert main(("kill", "--help")) == 0
    assert capsys.readouterr().out.startswith("End a run on every host")
    for word, meant in {
        "cancel": "stop",
        "squeue": "ps",
        "lgos": "logs",
        "stats": "ps",
        "nvtop": "top",
        "lanch": "launch",
        "restart": "rerun=latest",
    }.items():
        said = refused(capsys, word)
        assert said.startswith(f"error: command line: {word!r} is neither KEY=VALUE nor a verb\n")
        assert said.endswith(f"\n    did you mean {meant}?\n")


def test_the_cluster_is_the_subject_of_a_verb_about_hosts() -> None:
    """`ps CLUSTER`; a run is that of a verb about a run."""
    about_hosts = ("ps", "check", "deploy", "clean", "top")
    assert {values(name, "hy")["cluster"] for name in about_hosts} == {"hy"}
    assert values("logs", "0101-1200-x-abcd", "--cluster", "hy")["run"] == "0101-1200-x-abcd"


def test_each_misplaced_word_is_told_as_typed(capsys: pytest.CaptureFixture[str]) -> None:
    """Each by itself, in the order typed, with what it was likely meant to be."""
    general = "    a setting is KEY=VALUE; words for the program come after `--`\n"
    pair = (
        "error: command line: 'task.args.lr' has no value\n    one word is both: task.args.lr=0.1\n"
        f"error: command line: '0.1' is neither KEY=VALUE nor a flag\n{general}"
    )
    assert refused(capsys, "task.args.lr", "0.1", "cluster=hy") == pair
    assert refused(capsys, "cluster=hy", "task.args.lr", "0.1", "-m") == pair
    said = refused(capsys, "cluster=hy", "task=mine", "-m", "train.py", "ps", "=x")
    assert [line for line in said.splitlines() if not line.startswith("error")] == [
        "    a program to run is task.script=train.py, and its arguments come after `--`",
        "    a verb comes first: runner ps",
        general.strip("\n"),
    ]
    for flag in ("--config-name", "--config-path"):
        said = refused(capsys, flag, "x", "cluster=hy", "task=mine")
        assert said.startswith(f"error: command line: there is no flag '{flag}'\n    cluster=NAME ")
        assert "--config-dir=DIR" in said
    assert "dry_run=true\n" in refused(capsys, "--dry-run")
    assert "lost_s=...\n" in refused(capsys, "--lost-s=3")
    for spaced in (["cluster", "=", "hy"], ["task=mine", "cluster", "=", "hy"]):
        assert refused(capsys, *spaced) == (
            "error: command line: cluster = hy is three words, and a setting is one\n"
            "    without the blanks: cluster=hy\n"
        )
    assert "task.args.lr=..., or comes after `--`" in refused(capsys, "--lr", "0.1")
    assert refused(capsys, "init", "a=1").startswith("error: command line: init takes flags alone")


ONE, AUTO = (f"cluster=local cluster.nproc_per_node={count}" for count in (1, "auto"))
PLAIN = "cluster=local task.entry=plain"
EIGHT_GPUS = "cluster.gpus_per_node=8 cluster.nproc_per_node=8"


@pytest.mark.parametrize(
    ("typed", "named"),
    [
        ("train.py --lr 0.1", "task.script=train.py -- --lr 0.1"),
        ("run train.py -- --lr 0.1", "task.script=train.py -- --lr 0.1"),
        ("cluster=hy train.py lost_s=9 x=1", "cluster=hy lost_s=9 task.script=train.py -- x=1"),
        ("--nnodes 2 cluster=hy train.py", "cluster=hy task.nnodes=2 task.script=train.py"),
        ("--nnodes 2 --cluster hy train.py", "task.nnodes=2 cluster=hy task.script=train.py"),
        ("train.py -- --lr 1 cluster=lab", "task.script=train.py -- --lr 1 cluster=lab"),
        ("train.py lost_s=9 -- lost_s=8", "lost_s=9 task.script=train.py -- lost_s=8"),
        ("OMP_NUM_THREADS=4 train.py", "task.env.OMP_NUM_THREADS=4 task.script=train.py"),
        ("--standalone train.py", "cluster=local task.script=train.py"),
        ("python -m package.train --lr 1", f"{PLAIN} task.module=package.train -- --lr 1"),
        ("python3.11 -u train.py", f"{PLAIN} task.script=train.py"),
        (
            "./venv/bin/python train.py",
            f"cluster=local cluster.python=./venv/bin/python {PLAIN[14:]} task.script=train.py",
        ),
        ("-m torch.distributed.run -m package.train", f"{ONE} task.module=package.train"),
        ("python -uB -m torch.distributed.run train.py", f"{ONE} task.script=train.py"),
        ("python3 -W ignore -Xdev -m torch.distributed.run a.py", f"{ONE} task.script=a.py"),
        ("python /opt/bin/torchrun --standalone train.py", f"{ONE} task.script=train.py"),
        ("torchrun --nproc-per-node=gpu --no-python ./go.sh", f"{AUTO} task.command=./go.sh"),
        ("torchrun --no_python my(prog) -x", f"{ONE} 'task.command=[\"my(prog)\"]' -- -x"),
        ("torchrun -- train.py --lr 1", f"{ONE} task.script=train.py -- --lr 1"),
        (
            "torchrun --rdzv-backend etcd --rdzv-endpoint e train.py",
            f"{ONE[14:]} rendezvous=etcd rendezvous.endpoint=e:2379 task.script=train.py",
        ),
        (
            "rendezvous.serve=a torchrun --nnodes=2 --rdzv-backend etcd-v2 train.py",
            f"rendezvous.serve=a {ONE[14:]} task.nnodes=2 rendezvous=etcd-v2 task.script=train.py",
        ),
        (
            "torchrun train.py task=cifar ~deploy",
            f"{ONE} task.script=train.py -- task=cifar '~deploy'",
        ),
        (
            "torchrun --nnodes=2 ~deploy a.py",
            f"'~deploy' {ONE[14:]} task.nnodes=2 task.script=a.py",
        ),
        ("torchrun --nnodes=1 a.py", f"{ONE} task.nnodes=1 task.script=a.py"),
        ("torchrun --nnodes=1:1 --master_port=0 a.py", f"{ONE} task.nnodes=1 task.script=a.py"),
        (
            "torchrun --standalone --nnodes=2 train.py",
            f"{ONE[14:]} task.nnodes=2 task.script=train.py",
        ),
        ("torchrun --rdzv_endpoint=fe80::1 train.py", f"{ONE[14:]} task.script=train.py"),
        (
            "torchrun --rdzv_backend=c10d --rdzv_endpoint=localhost:0 train.py",
            f"{ONE} rendezvous=c10d task.script=train.py",
        ),
        (
            "torchrun --max_restarts=3 train.py",
            f"{ONE} rendezvous=standalone torchrun.max_restarts=3 task.script=train.py",
        ),
        (
            "torchrun --nnodes=2 --max_restarts=3 train.py",
            f"{ONE[14:]} relaunch.max=3 task.nnodes=2 task.script=train.py",
        ),
        ("torchrun a(1),b.py", f"{ONE} 'task.script=\"a(1),b.py\"'"),
        (
            "torchrun --rdzv-conf a=1,b=x train.py",
            f"""{ONE} 'torchrun.rdzv_conf={{a:"1",b:x}}' task.script=train.py""",
        ),
        (
            "torchrun --signals-to-handle=SIGTERM,SIGUSR1 train.py",
            f"{ONE} 'torchrun.signals_to_handle=[SIGTERM,SIGUSR1]' task.script=train.py",
        ),
        (
            "X=x Y=1 Z=a,b MASTER_PORT=0 RANK=0 torchrun train.py",
            f"""task.env.X=x task.env.Y=1 'task.env.Z="a,b"' {ONE} task.script=train.py""",
        ),
        (
            "CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node=2 train.py",
            "cluster=local cluster.gpus_per_node=2 cluster.nproc_per_node=2 task.script=train.py",
        ),
        (
            "CUDA_VISIBLE_DEVICES=2,3 accelerate launch train.py",
            f"{AUTO} 'cluster.nodes.local.gpus=[2,3]' task.script=train.py",
        ),
        (
            "python -m torch.distributed.launch train.py",
            f"{ONE} task.entry=launch task.script=train.py",
        ),
        ("python -m torch.distributed.launch --use_env train.py", f"{ONE} task.script=train.py"),
        (
            "accelerate launch --multi_gpu --mixed_precision=fp16 train.py",
            f"{AUTO} task.env.ACCELERATE_MIXED_PRECISION=fp16 task.script=train.py",
        ),
        (
            "deepspeed --num_gpus=8 train.py",
            f"cluster=local task.local_rank_arg=--local_rank {EIGHT_GPUS} task.script=train.py",
        ),
        ("deepspeed --no_local_rank train.py", f"{AUTO} task.script=train.py"),
        (
            "MASTER_ADDR=10.0.0.1 MASTER_PORT=2950 WORLD_SIZE=2 NODE_RANK=0 python train.py",
            f"{PLAIN[14:]} cluster.master_port=2950 task.nnodes=2 task.script=train.py",
        ),
    ],
)
def test_words_of_another_launcher_are_translated(
    typed: str, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line to type is named whole, and where its machines are chosen."""
    said = refused(capsys, *typed.split())
    assert f"    here that is: runner {named}\n" in said
    settings = named.partition(" -- ")[0]
    assert ("and cluster=NAME chooses the machines" in said) == ("cluster=" not in settings)
    is_for_any = "cluster=local" in named and "nodes.local" not in named
    assert ("cluster=NAME in its place" in said) == is_for_any
    hint = "cluster.nproc_per_node=auto in place of task.entry=plain is one per GPU"
    assert (hint in said) == ("task.entry=plain" in named)


MPI = "mpirun, horovodrun"
ON_THE_PAGE = on_the_page()
ONWARDS = f"    {NO_COUNTERPART}\n    {ON_THE_PAGE}\n"


@pytest.mark.parametrize(
    ("typed", "named"),
    [
        ("torchrun", "did you mean cluster=NAME task.script=PROGRAM?"),
        (
            "torchrun --log_dir x train.py",
            f"nothing was started; --log_dir has no counterpart here\n{ONWARDS}",
        ),
        (
            "torchrun --tee 3 train.py",
            f"nothing was started; --tee has no counterpart here\n{ONWARDS}",
        ),
        ("accelerate launch --use_fsdp train.py", f"--use_fsdp has no counterpart here\n{ONWARDS}"),
        ("python -O train.py", f"-O has no counterpart here\n{ONWARDS}"),
        ("torchrun --nproc_per_node=cpu a.py", "here, where it is a number from 1, gpu or auto\n"),
        ("accelerate launch --num_machines=0 a.py", "--num_machines=0 has no counterpart here"),
        ("accelerate launch --num_machines=2 a.py", "for 2 nodes it takes --num_processes"),
        ("torchrun --rdzv_backend=x a.py", "where it is static, c10d, etcd or etcd-v2\n"),
        ("torchrun --nnodes=2 --rdzv_backend=etcd-v2 a.py", "takes --rdzv_endpoint=HOST:PORT"),
        ("torchrun --nnodes=1:4 a.py", "--nnodes=1:4 takes an --rdzv_backend such as c10d\n"),
        (
            "CUDA_VISIBLE_DEVICES=2,3 torchrun --nnodes=2 a.py",
            "the GPUs 2,3 are chosen here by their numbers on each node: 'cluster.nodes.NODE.gpus",
        ),
        ("torchrun -m torch.distributed.run a.py", "torch.distributed.run is a launcher itself\n"),
        ("torchrun --no_python torchrun a.py", "torchrun is a launcher itself\n"),
        *(
            (
                f"{launcher} -n 2 train.py",
                f"nothing was started\n    {ON_THE_PAGE}, under {part!r}\n",
            )
            for launcher, part in {
                **{"mpirun": MPI, "horovodrun": MPI, "/usr/bin/srun": "Slurm", "torchx": "torchx"},
                **{"fabric run": "Lightning's fabric run", "podman run": "docker run"},
                **{"docker run": "docker run", "A=1 colossalai run": "Colossal-AI"},
                **{"sbatch": "Slurm", "salloc": "Slurm"},
            }.items()
        ),
        ("srun -n 2 python train.py", "where the cluster's YAML says `scheduler: slurm`: "),
        ("sbatch job.sh", f"{Path(__file__).parents[3]}/docs/slurm.md\n"),
        ("pdsh -w a hostname", f"{on_the_page(MPI)}\n    `runner exec -- COMMAND` runs"),
        (
            "deepspeed --include=a:0 train.py",
            "nothing was started; --include=a:0 has no counterpart here\n",
        ),
        (
            "accelerate launch --num_machines=2 --num_processes=3 train.py",
            "3 ranks cannot be the same number on each of 2 nodes",
        ),
        ("cluster=hy --nnodes=2 task=mine", "settings are written KEY=VALUE: task.nnodes=..."),
        ("--node-rank=1 task=mine", "the master's address and a free port are found by a launch"),
        ("--lr 0.1", "task.args.lr=..., or comes after `--`"),
        ("-m train.py", "a program to run is task.script=train.py"),
        ("nowhere.py --lr 0.1", "'nowhere.py' is neither KEY=VALUE nor a verb"),
    ],
)
def test_words_without_a_counterpart_are_not(
    typed: str, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """They get the hint that there is, and the page that has more lines."""
    assert "docs/command-lines.md" in ONWARDS
    assert "docs/command-lines.md" in ON_THE_PAGE
    said = refused(capsys, *typed.split())
    assert named in said
    assert "here that is" not in said


def test_flags_stand_anywhere_and_once() -> None:
    """Switches and repeatable flags may come again; a word of its own is the subject."""
    given = values("logs", "--rank", "1", "0101-1200-x-abcd", "--rank=2,3", "--follow", "a=1")
    assert (given["rank"], given["run"], given["follow"]) == (
        ["1", "2,3"],
        "0101-1200-x-abcd",
        True,
    )
    assert (given["set_"], given["node"], given["cluster"]) == (["a=1"], "", "")
    with pytest.raises(ConfigError) as error:
        values("logs", "--run", "a", "--run", "b")
    assert error.value.problems[0].message == "--run is given twice"
    with pytest.raises(ConfigError) as error:
        values("ps", "--clster", "x")
    assert error.value.problems[0].hint.startswith("did you mean --cluster?\n")


def test_several_runs_are_words_of_their_own() -> None:
    """With flags anywhere; of a note the first word is the run, and the others its text."""
    given = values("compare", "a", "--sort", "loss", "b", "--run=c")
    assert (given["run"], given["sort"], given["csv"]) == (["c", "a", "b"], "loss", False)
    assert not values("compare")["run"]
    given = values("note", "latest", "lr=0.1", "was", "better")
    assert (given["run"], given["text"]) == ("latest", ["lr=0.1", "was", "better"])
    assert values("note", "latest", "")["text"] == [""]
    assert not values("note", "latest")["text"]
    with pytest.raises(ConfigError) as error:
        values("note")
    assert error.value.problems[0].message.endswith("note latest")
    tasks, named = {"compare", "note", "ps"}, {name: name for name in ("compare", "note", "ps")}
    words = ["compare", "a", "b", "ps", "note", "a", "x y"]
    flags = ["compare", "--run=a", "--run=b", "ps", "note", "--run=a", "--text=x y"]
    assert verbs.words_as_flags(words, tasks, named, {}) == flags


def test_a_line_of_shell_is_the_command() -> None:
    """Also one that sets a variable first; a setting whose value has spaces is none."""
    assert values("exec", "A=1 env", "cluster.setup=[a b]") == {
        **dict.fromkeys(("cluster",), ""),
        **{"set_": ["cluster.setup=[a b]"], "config_dir": [], "command": "A=1 env"},
        **{"timeout": "10m", "quiet_equal": False, "json_": False},
    }


def test_fab_has_the_same_flags() -> None:
    """Each verb is an Invoke task with the flags of its declaration."""
    assert {task.name for task in verbs.TASKS} == set(verb_names())
    for task in verbs.TASKS:
        options = load_verb(task.name).options
        assert {arg.name for arg in task.get_arguments()} == {o.name for o in options}


def test_a_fault_of_our_own_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In a verb as in a dry run; its traceback is in a file."""

    def fail(*_: object, **__: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("runner.workflows.launch.render_dry_run", fail)
    monkeypatch.setattr("runner.ui.reports.tables.render_pruned", fail)
    for words in (["cluster=hy", "task=mine", "dry_run=offline"], ["clean", "--local"]):
        assert main(words) == 70
        error = capsys.readouterr().err
        message, path = error.rstrip().split("; its traceback is in ")
        assert message == "error: a fault of the runner itself (KeyError: 'a bug')"
        assert Path(path).read_text().count("Traceback") == 1
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(KeyError):
        main(["clean", "--local"])


@pytest.mark.parametrize("words", ["--help", "cluster=hy task=mine dry_run=offline"])
def test_output_that_cannot_be_written_is_one_line(words: str) -> None:
    """And has a code of its own."""
    argv = [sys.executable, "-m", "runner", *words.split()]
    full = Path("/dev/full")
    with full.open("w") as output:
        done = subprocess.run(argv, stdout=output, stderr=subprocess.PIPE, text=True, check=False)
    lost = "error: cannot write to standard output: [Errno 28] No space left on device\n"
    assert (done.returncode, done.stderr) == (74, lost)


def test_an_error_without_a_name_is_not_one_of_standard_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such as that of a write to a file of ours on a full disk."""

    def write(*_: object, **__: object) -> None:
        with Path("/dev/full").open("w") as full:
            full.write("text")

    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    monkeypatch.setattr("runner.workflows.prune_code.prune_code", write)
    monkeypatch.setattr("runner.ui.reports.tables.render_pruned", write)
    assert main(["clean", "--local"]) == 3
    assert capsys.readouterr().err == "error: cannot clean runs: No space left on device\n"
    monkeypatch.setattr("runner.workflows.prune_code.prune_code", lambda *_, **__: Mock())
    assert main(["clean", "--local"]) == 70
    assert "runner itself (OSError: [Errno 28] No space left" in capsys.readouterr().err


def test_help_is_printed_beside_yaml_that_cannot_be_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the shipped files, with where the fault is."""
    (tmp_path / "conf").mkdir(exist_ok=True)
    (tmp_path / "conf" / "runner.yaml").write_text("lost_s: [1")
    monkeypatch.chdir(tmp_path)
    assert main(["--help"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("Starts a PyTorch job on every machine of a cluster")
    assert said.err.startswith("error: conf/runner.yaml:1:")


def test_errors_keep_their_code_where_nobody_can_be_told() -> None:
    """On a full disk, too."""
    with Path("/dev/full").open("w") as output:
        argv = [sys.executable, "-m", "runner", "clean", "--wat"]
        assert subprocess.run(argv, stderr=output, check=False).returncode == 2


def test_words_of_fab_become_flags() -> None:
    """Those of verbs alone; flags of Fabric and other tasks with their words stay as they are."""
    fab_flags = {"-H": True, "-d": False, "--help": True}
    words = "mine --x config -H a k=1 lost_s --cluster config deploy +y=2 -d mine z config --help"
    tasks = {"config", "deploy", "mine"}
    ours = {"config": "config", "deploy": "deploy"}
    result = verbs.words_as_flags(words.split(), tasks, ours, fab_flags)
    assert " ".join(result) == (
        "mine --x config -H a --cluster=config --set=k=1 --key=lost_s deploy -d --set=+y=2 "
        "mine z config --help"
    )


def test_commands_in_messages_about_words_run_as_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An unknown flag, a word too many or too few: each verb has the same cure for them."""
    mistakes = [[verb, "--wat"] for verb in verb_names()]
    mistakes += [[verb, "a", "b"] for verb in ("ps", "logs", "stop")]
    mistakes += [["explain"], ["xyzzy"], ["--wat"], ["lr=1", "check"], ["stop"], ["+"]]
    printed_commands: set[str] = set()
    for words in mistakes:
        assert main(words) == 2
        err = capsys.readouterr().err
        commands = re.findall(r"`runner ([^`]+)`|: runner (.+)$", err, re.MULTILINE)
        assert commands, err
        printed_commands.update(quoted or alone for quoted, alone in commands)
    assert len(printed_commands) > len(verb_names())
    for command in printed_commands - {"check", "ps"}:  # which need a host
        assert main(shlex.split(command)) == 0, command


def test_a_program_that_is_here_is_named(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Where another name is typed, or none: then a task of ours is run."""
    folder = tmp_path_factory.mktemp("no_conf")
    (folder / "train.py").touch()
    monkeypatch.chdir(folder)
    near = "note: {} is not here; did you mean train.py?\n"
    other = "note: this runs resnet18, which comes with the runner; task.script=train.py runs "
    for words, said in {
        ("task.script=trian.py",): near.format("trian.py"),
        ("task.script=./trian.py",): near.format("./trian.py"),
        ("task.script=train.py",): "",
        (): f"{other}train.py\n",
        ("task=resnet18",): "",
    }.items():
        main(["cluster=local", "dry_run=offline", *words])
        notes = [line for line in capsys.readouterr().err.splitlines(True) if "note: " in line]
        assert "".join(notes) == said


def test_a_script_beside_conf_is_named_from_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the folder to go to; not where the script is here."""
    (tmp_path / "conf" / "task").mkdir(parents=True, exist_ok=True)
    (tmp_path / "conf" / "task" / "below.yaml").write_text("defaults: [base]\nscript: it.py\n")
    (tmp_path / "it.py").touch()
    (tmp_path / "sub").mkdir()
    words = ("cluster=local", "task=below", "dry_run=offline")
    note = "note: it.py is in .., beside conf, and not here: cd ..\n"
    for folder, begins in ((tmp_path / "sub", True), (tmp_path, False)):
        monkeypatch.chdir(folder)
        assert main(words) == (3 if begins else 0)
        assert capsys.readouterr().err.startswith(note) == begins
