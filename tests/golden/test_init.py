"""`init` writes YAML that composes and explains itself, and overwrites nothing."""

from __future__ import annotations

import builtins
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from runner.cli.scaffold import ScaffoldResult, scaffold, yaml_scalar
from runner.config.compose import open_composer
from runner.core.errors import ConfigError, Interrupted
from runner.core.model.spec import LaunchRequest, Node

CLUSTER, TASK = Path("conf/cluster/mine.yaml"), Path("conf/task/train.yaml")
ROOT = Path(__file__).parents[2]
FILES = (CLUSTER, TASK, Path("conf/runner.yaml"))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, in which the test stands; nobody answers unless the test does."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(builtins, "input", lambda text: pytest.fail(f"asked: {text}"))
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

        monkeypatch.setattr(builtins, "input", read)
        return asked

    return answer


def composed(*words: str, cluster: str = "mine", task: str = "train") -> LaunchRequest:
    with open_composer() as composer:
        return composer.compose([f"cluster={cluster}", f"task={task}", *words])


def nodes(*hosts: str) -> tuple[Node, ...]:
    scaffold(hosts=" ".join(hosts), interactive=False)
    return composed().spec.nodes


def tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_without_any_answer_there_are_examples(capsys: pytest.CaptureFixture[str]) -> None:
    """They compose, are marked as examples, and what to edit is said; so is what comes next."""
    outcome = scaffold(interactive=False)
    assert outcome == ScaffoldResult(FILES, (), ("cluster=mine", "task=train"))
    spec = composed().spec
    assert [node.name for node in spec.nodes] == ["gpu1", "gpu2"]
    assert (spec.task.target, spec.python, spec.ssh.user) == ("train.py", "python3", None)
    with open_composer(for_launches=True) as composer:
        alone = composer.compose([]).spec
    assert (alone.nodes, alone.task) == (spec.nodes, spec.task)
    assert CLUSTER.read_text().count("# an example") == 2
    assert TASK.read_text().count("# an example") == 1
    assert capsys.readouterr().out.splitlines() == [
        "wrote  conf/cluster/mine.yaml: put your own machines below `nodes`",
        "wrote  conf/task/train.yaml: name your own program as `script`",
        "wrote  conf/runner.yaml",
        "next:",
        "  runner check         # tries every machine, starts nothing",
        "  runner dry_run=true  # shows every command, starts nothing",
        "  runner",
    ]


def test_what_is_given_is_what_a_run_gets(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also awkward names; nothing is asked, and nothing is called an example."""
    (here / "my: script #1.py").touch()
    outcome = scaffold(
        cluster="lab-2",
        task="fit_2",
        hosts="gpu[01-03] bob@192.168.1.9:2222",
        user="alice",
        python="~/venv/bin/python",
        script="my: script #1.py",
        interactive=False,
    )
    assert outcome.overrides == ("cluster=lab-2", "task=fit_2")
    spec = composed(cluster="lab-2", task="fit_2").spec
    assert spec.nodes == (
        *(Node(name=name, host=name) for name in ("gpu01", "gpu02", "gpu03")),
        Node(name="node2", host="192.168.1.9", user="bob", port=2222),
    )
    assert (spec.ssh.user, spec.python) == ("alice", "~/venv/bin/python")
    assert spec.task.target == "my: script #1.py"
    assert "example" not in Path("conf/cluster/lab-2.yaml").read_text()
    assert "put your own" not in capsys.readouterr().out


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


def test_what_is_wrong_is_told_and_nothing_written(here: Path) -> None:
    """With the flag; also if a file that would be kept makes it useless."""
    wrong: list[tuple[dict[str, Any], str, str]] = [
        ({"hosts": "-x"}, "--hosts", "'-x'"),
        ({"hosts": "@gpu1"}, "--hosts", "''"),
        ({"hosts": "gpu1:ssh"}, "--hosts", "'ssh' is no port"),
        ({"hosts": "gpu1:70000"}, "--hosts", "from 1 to 65535"),
        ({"hosts": "300.1.1.1"}, "--hosts", "no address"),
        ({"hosts": "fe80::xyz"}, "--hosts", "no address"),
        ({"hosts": "gpu[1-"}, "--hosts", "no range"),
        ({"hosts": "gpu[1-3] gpu2"}, "--hosts", "second time"),
        ({"hosts": ","}, "--hosts", "no machine"),
        ({"hosts": __file__}, "--hosts", f"is a file here: --hostfile {__file__} reads one"),
        ({"hosts": "h1", "hostfile": "hosts"}, "--hostfile", "and so does --hosts"),
        ({"hostfile": "nothere"}, "--hostfile", "nothere cannot be read: No such file"),
        ({"hostfile": "/dev/null"}, "--hostfile", "/dev/null names no machine"),
        ({"user": "-oProxyCommand=x"}, "--user", "no login name"),
        ({"key": "/no/such/key"}, "--key", "/no/such/key cannot be read: No such file"),
        ({"key": __file__}, "--key", "is no private key: -----BEGIN … begins one"),
        ({"python": "a\nb"}, "--python", "one line"),
        ({"script": "nothere.py"}, "--script", "there is no file 'nothere.py' here"),
        ({"cluster": "../x"}, "--cluster", "no name for a file"),
        ({"task": "base"}, "--task", "the name of the defaults"),
    ]
    for given, flag, what in wrong:
        with pytest.raises(ConfigError) as caught:
            scaffold(**given, interactive=False)
        (problem,) = caught.value.problems
        assert (problem.subject, what in problem.message) == (flag, True), given
        assert tree(here) == set()


def test_files_that_are_there_stay(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second time changes nothing at all; also in the conf of somebody's own Hydra app."""
    for name in ("conf/config.yaml", "conf/runner.yaml", "conf/task/train.yaml", "fabfile.py"):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(f"# {name}\n")
    outcome = scaffold(hosts="h1", fabfile=True, interactive=False)
    kept = (*FILES[1:], Path("fabfile.py"))
    assert (outcome.written, outcome.existing) == ((CLUSTER,), kept)
    said = capsys.readouterr().out
    assert "kept   fabfile.py, as it is" in said
    assert said.endswith("\n  runner cluster=mine task=train\n")
    assert (here / TASK).read_text() == "# conf/task/train.yaml\n"
    before = (here / CLUSTER).read_text()
    capsys.readouterr()
    assert (
        scaffold(hosts="h2", user="ada", script="fabfile.py", interactive=False).existing == FILES
    )
    assert "--cluster OTHER and --task OTHER write other files" in capsys.readouterr().out
    assert (here / CLUSTER).read_text() == before
    assert composed("task.script=x.py").spec.nodes[0].name == "h1"


def test_a_link_that_leads_nowhere_is_kept(here: Path) -> None:
    """Writing through it would make a file elsewhere."""
    (here / "fabfile.py").symlink_to(here / "elsewhere")
    assert scaffold(fabfile=True, interactive=False).existing == (Path("fabfile.py"),)
    assert not (here / "elsewhere").exists()


def test_what_cannot_be_written_leaves_nothing(here: Path) -> None:
    """Here `conf/task` is a file: the cluster's file goes again."""
    (here / "conf").mkdir()
    (here / "conf/task").touch()
    with pytest.raises(ConfigError, match=r"conf/task.*: cannot be written: "):
        scaffold(interactive=False)
    assert not any((here / file).is_file() for file in FILES)


def test_questions_have_defaults(
    here: Path,
    answers: Callable[..., list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Enter takes what is shown; what is not legal is asked again; each fits 80 columns.

    What the ssh configuration names is shown, also that of files it includes.
    """
    monkeypatch.setenv("HOME", str(here.parent))
    (here.parent / ".ssh" / "more").mkdir(parents=True)
    (here.parent / ".ssh" / "config").write_text("Include more/*\nHost gpu1 gpu2 *.lab !x\n")
    (here.parent / ".ssh" / "more" / "lab").write_text("host = login\n  User ada\nHost *\n")
    (here / "main.py").touch()
    hosts = "gpu[1-2]:2200,far=ada@gpu9:22"
    asked = answers("gpu1 gpu1", hosts, "", "nope.py", "")
    scaffold(interactive=True)
    assert asked[0] == asked[1]
    assert asked[3] == asked[4]
    assert "~/.ssh/config names login, gpu1, gpu2" in capsys.readouterr().out
    assert asked[-1].endswith(" [main.py]: ")
    assert all(len(each) <= 72 and "\n" not in each for each in asked)
    spec = composed().spec
    assert [(node.name, node.host) for node in spec.nodes] == [
        ("gpu1", "gpu1"),
        ("gpu2", "gpu2"),
        ("far", "gpu9"),
    ]
    assert (spec.task.target, spec.python, spec.ssh.user) == ("main.py", "python3", None)


def test_enter_alone_is_this_machine_and_the_example(
    here: Path, answers: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """No machine and no program is made up: what is written works at once."""
    asked = answers("", "")
    scaffold(interactive=True)
    assert [each.rpartition(" [")[2] for each in asked] == [
        *("this machine]: ", "resnet18, an example]: "),
    ]
    assert tree(here) == {"conf", "conf/runner.yaml"}
    with open_composer(for_launches=True) as composer:
        spec = composer.compose([]).spec
    assert (spec.cluster, spec.task.name) == ("local", "resnet18")
    assert "init --hosts adds others" in capsys.readouterr().out


@pytest.mark.parametrize("stop", [KeyboardInterrupt, EOFError])
def test_who_has_enough_leaves_nothing(
    stop: type[BaseException], here: Path, answers: Callable[..., list[str]]
) -> None:
    """Ctrl-C and Ctrl-D at any question."""
    asked = answers("gpu1", stop)
    with pytest.raises(Interrupted, match="interrupted") as caught:
        scaffold(interactive=True)
    assert caught.value.exit_code == 130
    assert caught.value.problems[0].message == "interrupted; nothing was written"
    assert (len(asked), tree(here)) == (2, set())


def test_what_is_commented_out_is_the_default() -> None:
    """With every key uncommented the cluster is the same; there are eight."""
    scaffold(hosts="gpu1", interactive=False)
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
    assert composed().spec.task.args == ("--lr", "0.1", "--epochs", "3")


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
    scaffold(hostfile="hosts", interactive=False)
    assert composed().spec.nodes == (
        Node("node1", "10.0.0.1", nproc=8),
        Node("h2", "h2", user="ada", port=2222, nproc=4),
        Node("h3", "h3", user="ada@corp.example", port=22, nproc=8),
        Node("gpu1", "gpu1", nproc=8),
        Node("gpu2", "gpu2", nproc=8),
        Node("gpu4", "gpu4", nproc=8),
    )


def test_slots_of_all_hosts_are_one_key(here: Path) -> None:
    """And no slots are none of ours."""
    (here / "hosts").write_text("gpu1 slots=4\ngpu2 slots=4\n")
    scaffold(hostfile="hosts", interactive=False)
    cluster = yaml.safe_load(CLUSTER.read_text())
    assert (cluster["nodes"], cluster["nproc_per_node"]) == ({"gpu1": {}, "gpu2": {}}, 4)
    (here / "hosts").write_text("gpu1\ngpu2\n")
    scaffold("plain", hostfile="hosts", interactive=False)
    cluster = yaml.safe_load(Path("conf/cluster/plain.yaml").read_text())
    assert (cluster["nodes"], "nproc_per_node" in cluster) == ({"gpu1": {}, "gpu2": {}}, False)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("gpu1:ssh", "hosts, line 2: 'gpu1:ssh': 'ssh' is no port"),
        ("gpu1:2222", "hosts, line 2: is 2222 a port, or a number of slots? Write slots=N after"),
        ("gpu1 slots=0", "hosts, line 2: slots=0 is no number of ranks"),
        ("gpu1 4", "hosts, line 2: '4' is not like slots=4"),
        ("gpu0", "hosts, line 2: 'gpu0' names a machine a second time"),
    ],
)
def test_a_bad_line_of_a_hostfile_is_named_by_its_number(here: Path, line: str, what: str) -> None:
    """And nothing is written."""
    (here / "hosts").write_text(f"gpu0\n{line}\n")
    with pytest.raises(ConfigError) as caught:
        scaffold(hostfile="hosts", interactive=False)
    (problem,) = caught.value.problems
    assert (problem.subject, problem.message[: len(what)]) == ("--hostfile", what)
    assert tree(here) == {"hosts"}


OWN_TASKS = """
from invoke import task

@task
def status(_context): print("my status")

@task(aliases=["halt"])
def kill(_context, job="none"): print("my kill of", job)

@task
def logs(_context, day): print("my logs of", day)
"""


def test_own_tasks_called_like_verbs_or_their_aliases_stay_what_they_are(here: Path) -> None:
    """The verbs beside them, too: `stop` is not the `kill` of the project."""
    scaffold(fabfile=True, interactive=False)
    with (here / "fabfile.py").open("a") as file:
        file.write(OWN_TASKS)
    words = "status kill halt --job 7 logs monday stop"
    command = [str(Path(sys.executable).with_name("fab")), *words.split()]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=here, env=env, capture_output=True, text=True, check=False)
    said = "my status\nmy kill of none\nmy kill of 7\nmy logs of monday\n"
    assert (done.returncode, done.stdout) == (2, said), done
    assert done.stderr.startswith("error: --run: no run is given\n"), done


def test_scalars_are_what_was_meant(here: Path) -> None:
    """To YAML, on their own and inside braces; and a dollar is no interpolation."""
    texts = ["~", "a b", "a: b", "#x", "x #y", "1e3", "007", "yes", "a,b", "[x]", "'\"", "é", "*a"]
    for text in texts:
        assert yaml.safe_load(f"key: {yaml_scalar(text)}") == {"key": text}
        in_braces = f"{{key: {yaml_scalar(text, in_flow=True)}, b: 1}}"
        assert yaml.safe_load(in_braces) == {"key": text, "b": 1}
    (here / "a${b}.py").touch()
    scaffold(script="a${b}.py", interactive=False)
    assert composed().spec.task.target == "a${b}.py"
