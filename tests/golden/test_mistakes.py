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
]
"""Words of launches, of verbs, and of what was meant to be one of these."""

CLUSTERS = [
    "backend: ncll\nnodez: {}\nssh:\n  usr: ada\nnodes:\n  a: {gpuz: 3}\n",
    "lost_s: 60\nnodes: [a]\nssh:\n  user: [ada]\n  port: ssh\nenv: [A=1]\n",
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
