"""`init` writes YAML that composes and explains itself, and overwrites nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from runner.cli.main import main
from runner.config.compose import open_composer
from runner.core.launch_request import LaunchRequest
from runner.core.spec import Node

CLUSTER, TASK = Path("conf/cluster/mine.yaml"), Path("conf/task/train.yaml")
PRIMARY = Path("conf/runner.yaml")
ROOT = Path(__file__).parents[2]
NEXT = [
    "next:",
    "  runner check         # tries every machine, starts nothing",
    "  runner dry_run=true  # shows every command, starts nothing",
]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, in which the test stands; nobody answers unless the test does."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Answer what will be asked, in this order; return what was asked."""

    def answer(*texts: str | type[BaseException]) -> list[str]:
        asked: list[str] = []
        left: Iterator[str | type[BaseException]] = iter(texts)

        def read(question: str) -> str:
            asked.append(question)
            text = next(left)
            if isinstance(text, str):
                return text
            raise text

        monkeypatch.setattr("click.termui.visible_prompt_func", read)
        monkeypatch.setattr("sys.stdin.isatty", lambda: True)
        monkeypatch.setattr("sys.stdout.isatty", lambda: True)
        return asked

    return answer


def init(*words: str) -> None:
    assert main(["init", *words]) == 0


def composed(*words: str, cluster: str = "mine", task: str = "train") -> LaunchRequest:
    with open_composer() as composer:
        return composer.compose([f"cluster={cluster}", f"task={task}", *words])


def nodes(*hosts: str) -> tuple[Node, ...]:
    init(*(f"--hosts={each}" for each in hosts))
    return composed().spec.nodes


def test_without_any_answer_there_are_examples(capsys: pytest.CaptureFixture[str]) -> None:
    """They compose, are marked as examples, and what to edit is said; so is what comes next."""
    init()
    said = capsys.readouterr().out.splitlines()
    spec = composed().spec
    assert [node.name for node in spec.nodes] == ["gpu1", "gpu2"]
    assert (spec.task.target, spec.cluster.python, spec.cluster.ssh.user) == (
        *("train.py", "python3", None),
    )
    with open_composer(for_launches=True) as composer:
        alone = composer.compose([]).spec
    assert (alone.nodes, alone.task) == (spec.nodes, spec.task)
    assert [file.read_text().count("# an example") for file in (CLUSTER, TASK)] == [1, 1]
    edit = ": put your own below `nodes` or as `script`"
    wrote = [f"wrote  {CLUSTER}{edit}", f"wrote  {TASK}{edit}", f"wrote  {PRIMARY}"]
    assert said == [*wrote, *NEXT, "  runner"]


def test_what_is_given_is_what_a_run_gets(here: Path) -> None:
    """Also awkward names; nothing is called an example."""
    (here / "my: script #1.py").touch()
    python = "~/venv/bin/python"
    init(
        *("--cluster=lab-2", "--task=fit_2", "--user=alice", f"--python={python}"),
        *("--hosts", "gpu[01-03] bob@192.168.1.9:2222", "--script", "my: script #1.py"),
    )
    spec = composed(cluster="lab-2", task="fit_2").spec
    assert spec.nodes == (
        *(Node(name, host=name, python=python) for name in ("gpu01", "gpu02", "gpu03")),
        Node("node2", host="192.168.1.9", user="bob", port=2222, python=python),
    )
    assert (spec.cluster.ssh.user, spec.cluster.python) == ("alice", python)
    assert spec.task.target == "my: script #1.py"
    assert "example" not in Path("conf/cluster/lab-2.yaml").read_text()


def test_hosts_in_all_forms() -> None:
    """What ssh takes, parted by commas or spaces, and names that YAML would take for else."""
    found = nodes(
        "gpu1 gpu2:2222,gpu3.lab.example.org",
        "ada@gpu4.lab",
        r"LAB\ada@gpu5 1000@gpu6 null@gpu7 on 1e3 ada@corp.example@gpu8",
        "10.0.0.1 fe80::1%eth0 [fe80::2] ada@[2001:db8::7]:22",
        "a.x,a.y ada@rack[1-2]n[1,3]:2200",
    )
    assert found == (
        Node("gpu1", "gpu1"),
        Node("gpu2", "gpu2", port=2222),
        Node("gpu3", "gpu3.lab.example.org"),
        Node("gpu4", "gpu4.lab", user="ada"),
        Node("gpu5", "gpu5", user=r"LAB\ada"),
        Node("gpu6", "gpu6", user="1000"),
        Node("gpu7", "gpu7", user="null"),
        Node("on", "on"),
        Node("1e3", "1e3"),
        Node("gpu8", "gpu8", user="ada@corp.example"),
        Node("node11", "10.0.0.1"),
        Node("node12", "fe80::1%eth0"),
        Node("node13", "fe80::2"),
        Node("node14", "2001:db8::7", user="ada", port=22),
        Node("a", "a.x"),
        Node("a.y", "a.y"),
        Node("rack1n1", "rack1n1", user="ada", port=2200),
        Node("rack1n3", "rack1n3", user="ada", port=2200),
        Node("rack2n1", "rack2n1", user="ada", port=2200),
        Node("rack2n3", "rack2n3", user="ada", port=2200),
    )


def test_files_that_are_there_stay(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second time changes nothing at all; also in the conf of somebody's own Hydra app."""
    for name in ("conf/config.yaml", "conf/runner.yaml", "conf/task/train.yaml"):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(f"# {name}\n")
    (here / "fabfile.py").symlink_to(here / "elsewhere")  # a link, which is not followed either
    init("--hosts=h1", "--fabfile")
    said = capsys.readouterr().out
    assert f"wrote  {CLUSTER}\n" in said
    assert [file in said for file in ("kept   fabfile.py, as it is", f"kept   {TASK}")] == [
        True
    ] * 2
    assert said.endswith("\n  runner cluster=mine task=train\n")
    assert (here / TASK).read_text() == "# conf/task/train.yaml\n"
    before = (here / CLUSTER).read_text()
    (here / "x.py").touch()
    init("--hosts=h2", "--user=ada", "--script=x.py")
    assert (here / CLUSTER).read_text() == before
    assert not (here / "elsewhere").exists()
    assert composed("task.script=x.py").spec.nodes[0].name == "h1"


def test_what_cannot_be_written_is_named(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Here `conf/task` is a file."""
    (here / "conf").mkdir()
    (here / "conf/task").touch()
    assert main(["init"]) == 2
    assert re.search(r"error: init: conf/task.* cannot be written: ", capsys.readouterr().err)


def test_questions_have_defaults(
    here: Path, answers: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Enter takes what is shown; what is not legal is asked again; each fits 80 columns."""
    (here / "main.py").touch()
    asked = answers("gpu1 gpu1", "gpu[1-2]:2200,far=ada@gpu9:22", "", "nope.py", "")
    init()
    assert asked[0] == asked[1]
    assert asked[3] == asked[4]
    assert asked[-1].endswith(" [main.py]: ")
    assert "'gpu1' names a machine a second time" in capsys.readouterr().out
    assert all(len(each) <= 80 and "\n" not in each for each in asked)
    spec = composed().spec
    assert [node.host for node in spec.nodes] == ["gpu1", "gpu2", "gpu9"]
    assert (spec.task.target, spec.cluster.python) == ("main.py", "python3")


def test_enter_alone_is_this_machine_and_the_example(
    here: Path, answers: Callable[..., list[str]]
) -> None:
    """No machine and no program is made up: what is written works at once."""
    asked = answers("", "")
    init()
    assert [each.rpartition(" [")[2] for each in asked] == ["this machine]: ", "resnet18]: "]
    assert [str(path.relative_to(here)) for path in here.rglob("*.*")] == [str(PRIMARY)]
    with open_composer(for_launches=True) as composer:
        spec = composer.compose([]).spec
    assert (spec.cluster.name, spec.task.name) == ("local", "resnet18")


@pytest.mark.parametrize("stop", [KeyboardInterrupt, EOFError])
def test_who_has_enough_leaves_nothing(
    stop: type[BaseException],
    here: Path,
    answers: Callable[..., list[str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Ctrl-C and Ctrl-D at any question."""
    asked = answers("gpu1", stop)
    assert main(["init"]) == 130
    assert capsys.readouterr().err.endswith("error: interrupted; nothing was started\n")
    assert (len(asked), [*here.iterdir()]) == (2, [])


def test_what_is_commented_out_is_the_default() -> None:
    """With every key uncommented the cluster is the same; there are eight."""
    init("--hosts=gpu1")
    before = composed("run_id=r").spec
    for file in (CLUSTER, TASK):
        text = file.read_text()
        file.write_text(re.sub(r"^( *)#(?=\w)", r"\1", text, flags=re.MULTILINE))
    cluster = yaml.safe_load(CLUSTER.read_text())
    assert cluster.keys() == {"defaults", "nodes", "nproc_per_node", "python", "ssh", "setup"}
    assert cluster["ssh"].keys() == {"user", "key"}
    assert yaml.safe_load(TASK.read_text()).keys() == {"defaults", "script", "args"}
    after = composed("run_id=r", "task.args=null").spec
    assert after == before
    assert composed().spec.task.words == ("--lr", "0.1", "--epochs", "3")


HOSTFILE = """\
# of the old cluster

10.0.0.1 slots=8 max_slots=8
ada@h2:2222\tslots=4 type=gpu # old
ada@corp.example@h3:22 slots=8
gpu[1-2]:8
  gpu4:8
"""


def test_a_hostfile_is_a_cluster(here: Path) -> None:
    """In the forms of DeepSpeed and MPI; slots are ranks."""
    (here / "hosts").write_text(HOSTFILE)
    init("--hostfile=hosts")
    assert composed().spec.nodes == (
        Node("node1", "10.0.0.1", nproc_per_node=8),
        Node("h2", "h2", user="ada", port=2222, nproc_per_node=4),
        Node("h3", "h3", user="ada@corp.example", port=22, nproc_per_node=8),
        Node("gpu1", "gpu1", nproc_per_node=8),
        Node("gpu2", "gpu2", nproc_per_node=8),
        Node("gpu4", "gpu4", nproc_per_node=8),
    )


OWN_TASK = """
from invoke import task

@task
def logs(_context, day): print("my logs of", day)
"""


def test_an_own_task_called_like_a_verb_stays_what_it_is(here: Path) -> None:
    """The verbs beside it, too."""
    init("--fabfile")
    with (here / "fabfile.py").open("a") as file:
        file.write(OWN_TASK)
    command = [str(Path(sys.executable).with_name("fab")), "logs", "monday", "stop"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=here, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "my logs of monday\n"), done
    assert done.stderr.startswith("error: --run: no run is given\n"), done


def test_texts_are_what_was_meant(here: Path) -> None:
    """To YAML, on their own and inside braces; and a dollar is no interpolation."""
    texts = ["~", "a b", "a: b", "#x", "x #y", "1e3", "007", "yes", "a,b", "[x]", "'\"", "é", "*a"]
    for number, text in enumerate(texts):
        init(f"--cluster=c{number}", f"--python={text}")
        assert yaml.safe_load(Path(f"conf/cluster/c{number}.yaml").read_text())["python"] == text
    assert [node.user for node in nodes("1e3@a", "007@b", "yes@c")] == ["1e3", "007", "yes"]
    (here / "a${b}.py").touch()
    init("--task=dollar", "--script=a${b}.py")
    assert composed(task="dollar").spec.task.target == "a${b}.py"
