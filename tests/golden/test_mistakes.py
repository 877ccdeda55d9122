"""What is said of mistakes on the command line, in files and in values, word for word."""

from __future__ import annotations

import shlex
import sys
import textwrap
from types import ModuleType
from typing import Any

import pytest

from runner.cli.main import main
from tests.golden.conftest import Check
from tests.golden.here import CONF, Here
from tests.golden.test_specs import problems_of

PAIR = "cluster=pair"

LINES = [
    PAIR,
    "-m",
    "task=mine cluster=nope",
    "task=mine cluster=gpu1,gpu2",
    "task=mine cluster=ada@gpu1",
    f"task=mine {PAIR} clustre=pair watch.stal_s=3 +foo=1 nnodes=2",
    f"task=mine {PAIR} relaunch.max=two lost_s=abc detach=ture",
    f"task=mine {PAIR} cluster.nodes.gpu2.gpus=4",
    "task=mine 'cluster.python=${oc.env:NOPE}' 'cluster.workdir=${nope}'",
    "task=mine 'cluster.setup=[a'",
    "task=mine task.args.lr=1,2",
    f"task=mine {PAIR} hydra.run.dir=/tmp/x",
    f"{PAIR} task=mine -m cluster.backend=gloo,x",
    f"task=mine {PAIR} cluster.only=gpu[7-8]",
    f"task=mine {PAIR} cluster.nodes.gpu1=10.0.0.9 +cluster.nodes.x=[a]",
    f"task=mine {PAIR} cluster.nodes=[gpu1]",
    f"task=mine {PAIR} task.args.lr.x=1",
    f"task=mine {PAIR} task.args={{model.lr:1}}",
    f"train.py {PAIR} --lr 0.1",
    "task=mine --foo",
    "task=mine --dry-run",
    "task=mine --cfg job",
    "task=mine cluster = pair",
    f"task.args.lr 0.1 {PAIR}",
    "rerun 1123-1245",
    "train.sh --lr 1",
    "lgos",
    "torchrun --nnodes=2 train.py --lr 1",
    "python train.py --lr 1",
    "train.ipynb",
    "--hlep",
    "ps pair task.args.lr=1 lost_s=3 task=mine",
    "logs -tail 5",
    "logs --run a --run b",
    "logs --rank",
    "init --hosts -x",
    "init --hosts gpu1:70000",
    "init --hosts 'gpu[3-1]'",
    "init --hosts 'a=gpu[1-3]'",
    "init --hosts gpu2,gpu2",
    "init --hosts train.py",
    "init --hosts h1 --hostfile x",
    "init --hostfile nothere",
    "init --hostfile hosts.no_machine",
    "init --hostfile hosts.port",
    "init --hostfile hosts.slots",
    "init --script nothere.py",
    "init --task base",
]
"""Words of launches, of verbs, and of what was meant to be one of these."""

HOST_LINES = {"no_machine": "gpu1:ssh", "port": "gpu1:2222", "slots": "gpu1 slots=0"}
"""Bad lines of files of hosts."""

CLUSTERS = [
    "backend: ncll\nnodez: {}\nssh:\n  usr: ada\nnodes:\n  a: {gpuz: 3}\n",
    "lost_s: 60\nnodes: [a]\nssh:\n  user: [ada]\n  port: ssh\nenv: [A=1]\n",
    "nodes: [a\nbackend: gloo\n",
    "python: ${oc.env:NOPE}\n",
    "defaults: [bse]\n",
    "nodes:\n- gpu1\n",
    "ssh: {}\nenv:\n- A=1\n",
    "only: {a: {}}\n",
    "ssh: [a]\n",
    "defaults: base\n",
    "defaults: [bad]\n",
]
PRIMARIES = [
    "cluster: pair\n",
    "los_s: 1\ngrace_s: x\ndefaults: [task: mine]\n",
    "task:\n  env: [A]\n",
    "hydra: {run: {dir: x}}\n",
    "task: mine\n",
    "defaults: {task: x}\n",
    "run_dir: ${a\n",
]


@pytest.fixture(autouse=True)
def no_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = ModuleType("runner.verbs.launching.launch_session")
    monkeypatch.setattr(launch, "run", lambda _: 0, raising=False)
    monkeypatch.setitem(sys.modules, "runner.verbs.launching.launch_session", launch)
    monkeypatch.delenv("NOPE", raising=False)


def refused(here: Here, capsys: pytest.CaptureFixture[str], line: str) -> str:
    """Return what is said of the words of a line, with nothing of this machine in it."""
    assert main(shlex.split(line)) == 2, (line, capsys.readouterr())
    captured = capsys.readouterr()
    assert captured.out == "", line
    assert "Traceback" not in captured.err
    return captured.err.replace(str(CONF), "SHIPPED").replace(str(here.folder), "HERE")


@pytest.mark.promise(8)
def test_mistakes_on_the_command_line(
    here: Here, capsys: pytest.CaptureFixture[str], check_screen: Check
) -> None:
    """Each is told with where it is, what is legal and what next; exit 2, and no run."""
    here.write({"train.py": "", "train.sh": "", "train.ipynb": ""})
    here.write({f"hosts.{kind}": f"gpu0\n{line}\n" for kind, line in HOST_LINES.items()})
    page = [f"$ runner {line}\n{refused(here, capsys, line)}" for line in LINES]
    check_screen("mistakes-typed.txt", "\n".join(page))


@pytest.mark.promise(8)
def test_mistakes_in_files(
    here: Here, capsys: pytest.CaptureFixture[str], check_screen: Check
) -> None:
    """Each is told with its file and line, and one of a file hides none of another."""
    page = []
    for text in CLUSTERS:
        here.write({"conf/cluster/bad.yaml": text})
        said = refused(here, capsys, "cluster=bad task=mine")
        page.append(f"conf/cluster/bad.yaml:\n{textwrap.indent(text, '  | ')}{said}")
    for text in PRIMARIES:
        here.write({"conf/runner.yaml": text})
        said = refused(here, capsys, "grace_s=3")
        page.append(f"conf/runner.yaml:\n{textwrap.indent(text, '  | ')}{said}")
    check_screen("mistakes-in-files.txt", "\n".join(page))


def test_a_word_too_long_for_a_path(here: Here, capsys: pytest.CaptureFixture[str]) -> None:
    """Looking for a file of that name fails; it is a mistake as any other."""
    for start in ("", "~/", "cluster=", "--config-dir="):
        assert "fault" not in refused(here, capsys, f"{start}{'x' * 300}")


SECRET = "hunter2"
ENVIRON = {"TOKEN": SECRET}
PLAIN = {"task.entry": "plain"}
TWO: dict[str, Any] = {"cluster.nodes": {"a1": {}, "a2": {}}}
SLURM = {"cluster.scheduler": "slurm"}
COMMAND = {"task.script": None}

CASES: list[dict[str, Any]] = [
    {"cluster.backend": "ncll", "lost_s": -1, "cluster.nodes": {"a": {"gpu": 1}}},
    {"cluster.secrets": ["TOKEN", "NOT_SET"], "cluster.pass_env": ["TOKEN"]},
    {"cluster.secrets": ["TOKEN"], "notify": f"mail {SECRET}"},
    {"cluster.nodes": {"gpu[1-": {}, "a": "10.0.0.1", "b": {"host": f"ada:{SECRET}@10.0.0.1"}}},
    {"cluster.nodes": {"a": {"host": "x"}, "b": {"host": "x"}}, "cluster.ssh.key": "/no/key"},
    {**TWO, "cluster.exclude": ["a[1-3]"], "task.nnodes": 3},
    {**TWO, "cluster.master": "a1", "cluster.exclude": "a1", "rendezvous.backend": "etcd"},
    {"container.shm_size": "1g"},
    {"container.engine": "docker", "container.extra": ["-v", "data:/data"]},
    {**COMMAND, "task.command": "LR=1 python train.py"},
    {**COMMAND, "task.command": "python a.py\npython b.py\n", "debug.rank": 0},
    {"task.args": {"x": ["-a"]}, "task.module": "train"},
    {"task.script": "train.sh", "task.args": "a 'b", "task.args_style": "raw"},
    {"task.local_rank_arg": "--local_rank", "torchrun.monitor_interval": 1, **PLAIN},
    {"task.decides": "master", "torchrun.max_restarts": 2, "task.args_expand": True},
    {**TWO, **PLAIN, "task.decides": "a3", "rendezvous.backend": "standalone"},
    {**SLURM, "cluster.nodes": {"gpu1": {}}, "cluster.master": "gpu1"},
]


@pytest.mark.promise(8)
def test_every_refusal_says_where_what_and_what_next(check_screen: Check) -> None:
    """One mistake is one problem, all are told at once, and a secret is in none of them."""
    page = []
    for changes in CASES:
        asked = ", ".join(f"{key}: {value!r}" for key, value in changes.items())
        problems = problems_of(changes, ENVIRON)
        assert SECRET not in "".join(problems)
        page.append(f"{asked}\n" + "".join(f"error: {problem}\n" for problem in problems))

    check_screen("refusals.txt", "\n".join(page).replace(SECRET, "***"))
