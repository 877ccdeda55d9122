"""What is said of mistakes on the command line and in files, word for word, on two pages."""

from __future__ import annotations

import shlex
import sys
import textwrap
from types import ModuleType

import pytest

from runner.cli.main import main
from tests.golden.conftest import Check
from tests.golden.here import CONF, Here

PAIR = "cluster=pair"
SWEEP = f"{PAIR} task=mine -m"

LINES = [
    f"{PAIR}",
    "-m",
    "task=mine cluster=lab9",
    "task=mine cluster=nope",
    "task=train.py cluster=pair",
    "task=mine clustre=pair",
    f"task=mine {PAIR} watch.stal_s=3 +foo=1",
    f"task=mine {PAIR} stop.grace_s=3 on_disconnect=keep cluster.deploy=never logs.raw=true",
    f"task=mine {PAIR} nnodes=2 lr=0.1",
    f"task=mine {PAIR} relaunch.max=two lost_s=abc detach=ture",
    f"task=mine {PAIR} cluster.nodes.gpu2.gpus=4",
    "task=mine cluster.ssh=4",
    "task=mine task.args=[1]",
    "task=mine 'cluster.python=${oc.env:NOPE}' 'cluster.workdir=${nope}'",
    "task=mine 'cluster.setup=[a'",
    "task=mine cluster.env.1X=3",
    "task=mine task.args.lr=1,2",
    "task=mine env.X=0,1",
    f"task=mine {PAIR} '~cluster.nodes.gpu03'",
    f"task=mine {PAIR} '~task.args.nope'",
    f"task=mine {PAIR} '~detahc'",
    f"task=mine {PAIR} '~'",
    "task=mine cluster=null",
    "task=mine --foo",
    "task=mine --config-dir /no/conf",
    "task=mine --dry-run",
    "task=mine cluster = pair",
    f"task.args.lr 0.1 {PAIR}",
    f"{PAIR} task=mine -m train.sh ps =x",
    f"train.py {PAIR} --lr 0.1",
    "conf/cluster/pair.yaml",
    "pair.yaml train",
    f"{PAIR} task=mine detahc",
    f"task=own {PAIR} 'task.args_after=[c]' -- d",
    f"task=mine {PAIR} hydra/launcher=joblib",
    f"task=mine {PAIR} hydra.run.dir=/tmp/x",
    f"task=mine {PAIR} 'task.args.out=${{hydra:runtime.output_dir}}/x'",
    f"{SWEEP} cluster.backend=gloo,x",
    f"{SWEEP} cluster=pair,base",
    f"{SWEEP} lost_s=1,2 run_id=one",
    f"{SWEEP} task.args.lr=1,2 detach=true -- 'a b'",
    "rerun 1123-1245",
    "mine",
    "cluster pair",
    "detach",
    "watch",
    "cancel",
    "note hello",
    "lgos",
    "restart",
    "OMP_NUM_THREADS=1 /usr/bin/python3.11 -m torch.distributed.run train.py",
    "torchrun --nnodes=2 train.py --lr 1",
    "--nproc_per_node=2 task.script=train.py",
    "ps -A",
    "ps --all=yes",
    "ps --help=3",
    "-h -m",
    "launch launch",
    "logs -tail 5",
    "-mx",
    "-cn x",
    "-task train",
    "--nodes 2 train.py",
    "-v",
    "version",
    f"train.py --cluster pair {PAIR}",
    "ps pair task.args.lr=1 lost_s=3 task=mine",
    "deploy pair cluster.setup=[] watch.stall_s=3",
    f"config {PAIR} task=mine -- x",
    "logs --clster x",
    "logs --run a --run b",
    "logs --rank",
    "logs -n 0",
    "stop a b",
    "stop",
    "explain",
    "exec 'ls' --cluster pair -- ls",
    "check --skip nothing",
    "clean --older-than 7",
    "--shell-completion tcsh",
    "ps --cluster hy --cluster hy",
    "init a=1",
]
"""Words of launches, of verbs, and of what was meant to be one of these."""

CLUSTERS = [
    "backend: ncll\nnodez: {}\nssh:\n  usr: ada\nnodes:\n  a: {gpuz: 3}\n",
    "nodes: [a]\nssh:\n  user: [ada]\n  port: ssh\nenv: [A=1]\n",
    "nodes: [a\nbackend: gloo\n",
    "python: ${oc.env:NOPE}\n",
    "defaults: [bse]\n",
]
PRIMARIES = [
    "cluster: pair\n",
    "los_s: 1\ngrace_s: x\ndefaults: [task: mine]\n",
]


@pytest.fixture(autouse=True)
def no_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = ModuleType("runner.workflows.launch")
    monkeypatch.setattr(launch, "run", lambda _: 0, raising=False)
    monkeypatch.setitem(sys.modules, "runner.workflows.launch", launch)
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
    task = "defaults: [base]\nscript: x\nextra_args: [a]\n"
    here.write({"conf/task/own.yaml": task, "train.py": "", "train.sh": ""})
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
