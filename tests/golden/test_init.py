"""`init` writes YAML that composes and explains itself, and overwrites nothing."""

from __future__ import annotations

import builtins
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from runner.cli.scaffold import ScaffoldResult, parse_hosts, scaffold, yaml_scalar
from runner.config.compose import open_composer
from runner.core.errors import ConfigError, Interrupted
from runner.core.model.spec import LaunchRequest, Node

CLUSTER, TASK = Path("conf/cluster/mine.yaml"), Path("conf/task/train.yaml")
FILES = (CLUSTER, TASK, Path("fabfile.py"))


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
    """Compose what is in the folder."""
    with open_composer() as composer:
        return composer.compose([f"cluster={cluster}", f"task={task}", *words])


def nodes(*hosts: str) -> tuple[Node, ...]:
    """Return the nodes of a cluster of these hosts."""
    scaffold(hosts=hosts, interactive=False)
    return composed().spec.nodes


def tree(folder: Path) -> set[str]:
    """Return all that is in a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_without_any_answer_there_are_examples(capsys: pytest.CaptureFixture[str]) -> None:
    """They compose, are marked as examples, and what to edit is said; so is what comes next."""
    outcome = scaffold(interactive=False)
    assert outcome == ScaffoldResult(FILES, (), ("cluster=mine", "task=train"), try_now=False)
    spec = composed().spec
    assert [node.name for node in spec.nodes] == ["gpu1", "gpu2"]
    assert (spec.task.target, spec.python, spec.ssh.user) == ("train.py", "python3", None)
    run = "python -m runner cluster=mine task=train"
    assert CLUSTER.read_text().count("# an example") == 2
    assert TASK.read_text().count("# an example") == 1
    assert capsys.readouterr().out.splitlines() == [
        "wrote  conf/cluster/mine.yaml: put your own machines below `nodes`",
        "wrote  conf/task/train.yaml: name your own program as `script`",
        "wrote  fabfile.py",
        "next:",
        f"  {run} dry_run=offline   # prints the plan, contacts no host",
        f"  {run} dry_run=true      # asks the hosts, starts nothing",
        f"  {run}",
    ]


def test_what_is_given_is_what_a_run_gets(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also awkward names; nothing is asked, and nothing is called an example."""
    (here / "my: script #1.py").touch()
    outcome = scaffold(
        cluster="lab-2",
        task="fit",
        hosts=["gpu[01-03]", "bob@192.168.1.9:2222"],
        user="alice",
        python="~/venv/bin/python",
        script="my: script #1.py",
        interactive=False,
    )
    assert outcome.overrides == ("cluster=lab-2", "task=fit")
    spec = composed(cluster="lab-2", task="fit").spec
    assert spec.nodes == (
        *(Node(name=name, host=name) for name in ("gpu01", "gpu02", "gpu03")),
        Node(name="node2", host="192.168.1.9", user="bob", port=2222),
    )
    assert (spec.ssh.user, spec.python) == ("alice", "~/venv/bin/python")
    assert spec.task.target == "my: script #1.py"
    assert "example" not in Path("conf/cluster/lab-2.yaml").read_text()
    assert "put your own" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("host", "wanted"),
    [
        ("gpu1", Node("gpu1", "gpu1")),
        ("gpu1:2222", Node("gpu1", "gpu1", port=2222)),
        ("gpu1.lab.example.org", Node("gpu1", "gpu1.lab.example.org")),
        ("ada@gpu1.lab", Node("gpu1", "gpu1.lab", user="ada")),
        (r"LAB\ada@gpu1", Node("gpu1", "gpu1", user=r"LAB\ada")),
        ("10.0.0.1", Node("node1", "10.0.0.1")),
        ("fe80::1%eth0", Node("node1", "fe80::1%eth0")),
        ("::1", Node("node1", "::1")),
        ("[fe80::1]", Node("node1", "fe80::1")),
        ("ada@[2001:db8::7]:22", Node("node1", "2001:db8::7", user="ada", port=22)),
        ("on", Node("on", "on")),
        ("1e3", Node("1e3", "1e3")),
        ("1000@gpu1", Node("gpu1", "gpu1", user="1000")),
        ("null@gpu1", Node("gpu1", "gpu1", user="null")),
    ],
)
def test_hosts_in_all_forms(host: str, wanted: Node) -> None:
    """What ssh takes, and names that YAML would take for something else."""
    assert nodes(host) == (wanted,)


def test_several_hosts_in_one_word() -> None:
    """Parted by commas or spaces, but not within brackets; names are made where two are alike."""
    found = nodes("a.x,a.y gpu[1,3]", "ada@rack[1-2]n[1-2]:2200", "10.0.0.1", "10.0.0.2")
    assert [node.name for node in found] == [
        *("a", "a.y", "gpu1", "gpu3", "rack1n1", "rack1n2", "rack2n1", "rack2n2"),
        *("node5", "node6"),
    ]
    assert {(node.user, node.port) for node in found[4:8]} == {("ada", 2200)}


def test_a_name_we_made_may_be_that_of_a_host() -> None:
    """Then the host gets another."""
    assert parse_hosts("10.0.0.1 node1 [::1]:7") == {
        "node1": {"host": "10.0.0.1"},
        "node2": {"host": "node1"},
        "node3": {"host": "::1", "port": 7},
    }


@pytest.mark.parametrize(
    ("given", "flag", "what"),
    [
        ({"hosts": ["gpu 1!"]}, "--hosts", "'1!'"),
        ({"hosts": ["-x"]}, "--hosts", "'-x'"),
        ({"hosts": ["ada@"]}, "--hosts", "''"),
        ({"hosts": ["@gpu1"]}, "--hosts", "''"),
        ({"hosts": ["a b@gpu1", "a"]}, "--hosts", "second time"),
        ({"hosts": ["gpu1:"]}, "--hosts", "no port"),
        ({"hosts": ["gpu1:ssh"]}, "--hosts", "'ssh' is no port"),
        ({"hosts": ["gpu1:70000"]}, "--hosts", "from 1 to 65535"),
        ({"hosts": ["300.1.1.1"]}, "--hosts", "no address"),
        ({"hosts": ["7"]}, "--hosts", "no address"),
        ({"hosts": ["gpu[1-2]x[", "a"]}, "--hosts", "no range"),
        ({"hosts": ["fe80::xyz"]}, "--hosts", "no address"),
        ({"hosts": ["gpu[1-"]}, "--hosts", "no range"),
        ({"hosts": ["gpu[1-3]", "gpu2"]}, "--hosts", "second time"),
        ({"hosts": ["a@10.0.0.1", "a@10.0.0.1"]}, "--hosts", "second time"),
        ({"hosts": ["gpu1", "ada@gpu1"]}, "--hosts", "second time"),
        ({"hosts": [","]}, "--hosts", "no machine"),
        ({"user": "ada lovelace"}, "--user", "no login name"),
        ({"user": "-oProxyCommand=x"}, "--user", "no login name"),
        ({"python": "a\nb"}, "--python", "one line"),
        ({"script": "nothere.py"}, "--script", "there is no file 'nothere.py' here"),
        ({"script": "."}, "--script", "there is no file '.' here"),
        ({"cluster": "../x"}, "--cluster", "no name for a file"),
        ({"cluster": "Mine"}, "--cluster", "no name for a file"),
        ({"task": "base"}, "--task", "the name of the defaults"),
    ],
)
def test_what_is_wrong_is_told_and_nothing_written(
    given: Mapping[str, Any], flag: str, what: str, here: Path
) -> None:
    """With the flag; also if a file that would be kept makes it useless."""
    with pytest.raises(ConfigError) as caught:
        scaffold(**given, interactive=False)
    (problem,) = caught.value.problems
    assert (problem.subject, what in problem.message) == (flag, True)
    assert tree(here) == set()


def test_files_that_are_there_stay(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second time changes nothing at all; also in the conf of somebody's own Hydra app."""
    for name in ("conf/config.yaml", "conf/task/train.yaml", "fabfile.py"):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(f"# {name}\n")
    outcome = scaffold(hosts=["h1"], interactive=False)
    assert (outcome.written, outcome.existing) == ((CLUSTER,), FILES[1:])
    assert "kept   fabfile.py, as it is" in capsys.readouterr().out
    assert (here / TASK).read_text() == "# conf/task/train.yaml\n"
    before = (here / CLUSTER).read_text()
    assert scaffold(hosts=["h2"], interactive=False).existing == FILES
    assert (here / CLUSTER).read_text() == before
    assert composed("task.script=x.py").spec.nodes[0].name == "h1"


def test_a_link_that_leads_nowhere_is_kept(here: Path) -> None:
    """Writing through it would make a file elsewhere."""
    (here / "fabfile.py").symlink_to(here / "elsewhere")
    assert scaffold(interactive=False).existing == (Path("fabfile.py"),)
    assert not (here / "elsewhere").exists()


def test_what_cannot_be_written_leaves_nothing(here: Path) -> None:
    """Here `conf/task` is a file: the cluster's file goes again."""
    (here / "conf").mkdir()
    (here / "conf/task").touch()
    with pytest.raises(ConfigError, match=r"conf/task.*: cannot be written: "):
        scaffold(interactive=False)
    assert not any((here / file).is_file() for file in FILES)


def test_questions_have_defaults(
    here: Path, answers: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Enter takes what is shown; what is not legal is asked again."""
    (here / "main.py").touch()
    asked = answers(
        "gpu1 gpu1", "gpu[1-2],far=ada@gpu9:22", "", "nope", "", "", "nope.py", "", "maybe", ""
    )
    outcome = scaffold(interactive=True)
    assert outcome.try_now
    assert [re.findall(r"\[([^\]]*)\]: $", each) for each in asked] == [
        *([], [], [], [], [], ["python3"], ["main.py"], ["main.py"], ["yes"], ["yes"]),
    ]
    spec = composed().spec
    assert [node.name for node in spec.nodes] == ["gpu1", "gpu2", "far"]
    assert (spec.task.target, spec.python, spec.ssh.user) == ("main.py", "python3", None)
    assert [node.host for node in spec.nodes] == ["gpu1", "gpu2", "gpu9"]
    assert "there is no file 'nope.py' here" in capsys.readouterr().out


def test_only_what_is_not_known_is_asked(here: Path, answers: Callable[..., list[str]]) -> None:
    """Neither what a flag says, nor what is in a file that stays."""
    (here / "conf/task").mkdir(parents=True)
    (here / TASK).write_text("defaults: [base]\nscript: x.py\n")
    asked = answers("ada", "", "~/py", "n")
    outcome = scaffold(hosts=["gpu1"], interactive=True)
    assert [each.split()[1] for each in asked] == ["login", "private", "interpreter", "a"]
    assert not outcome.try_now
    assert (composed().spec.ssh.user, composed().spec.python) == ("ada", "~/py")


@pytest.mark.parametrize("stop", [KeyboardInterrupt, EOFError])
@pytest.mark.parametrize("after", range(6))
def test_who_has_enough_leaves_nothing(
    stop: type[BaseException], after: int, here: Path, answers: Callable[..., list[str]]
) -> None:
    """Ctrl-C and Ctrl-D at any question."""
    asked = answers(*["", "", "", "", ""][:after], stop)
    with pytest.raises(Interrupted, match="interrupted") as caught:
        scaffold(interactive=True)
    assert caught.value.exit_code == 130
    assert caught.value.problems[0].message == "interrupted; nothing was written"
    assert (len(asked), tree(here)) == (after + 1, set())


def test_a_conf_further_up_is_named(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The new one is nearer, so its clusters are out of sight."""
    (here.parent / "conf" / "cluster").mkdir(parents=True)
    scaffold(interactive=False)
    assert f"{here.parent}/conf is not read from here any more" in capsys.readouterr().out


def test_what_is_commented_out_is_the_default() -> None:
    """With every key uncommented the cluster is the same, and there are 45 lines at most."""
    scaffold(hosts=["gpu1"], interactive=False)
    before = composed("run_id=r").spec
    for file in (CLUSTER, TASK):
        text = file.read_text()
        assert len(text.splitlines()) < 45
        file.write_text(re.sub(r"^( *)#(?=\w)", r"\1", text, flags=re.MULTILINE))
    shown = yaml.safe_load(CLUSTER.read_text())
    assert {"master", "project", "secrets", "workdir"} <= set(shown)
    assert {"key", "jump", "host_keys"} <= set(shown["ssh"])
    after = composed("run_id=r", "task.args=null").spec
    assert after == before
    assert composed().spec.task.args == ("--lr", "0.1", "--epochs", "3")


def test_the_fabfile_takes_all_verbs(here: Path) -> None:
    """Two lines: what there is comes with the package."""
    scaffold(interactive=False)
    assert (here / "fabfile.py").read_text().splitlines() == [
        '"""fab -l shows what there is."""',
        "from runner.verbs import *  # noqa: F403",
    ]


@pytest.mark.parametrize(
    "text",
    ["~", "a b", "a: b", "#x", "x #y", "1e3", "007", "yes", "a,b", "[x]", "{x}", "'\"", "é", "*a"],
)
def test_scalars_are_what_was_meant(text: str) -> None:
    """To YAML, on their own and inside braces."""
    assert yaml.safe_load(f"key: {yaml_scalar(text)}") == {"key": text}
    assert yaml.safe_load(f"{{key: {yaml_scalar(text, in_flow=True)}, b: 1}}") == {
        "key": text,
        "b": 1,
    }


def test_a_dollar_is_no_interpolation(here: Path) -> None:
    """Neither in a file's name."""
    (here / "a${b}.py").touch()
    scaffold(script="a${b}.py", interactive=False)
    assert composed().spec.task.target == "a${b}.py"
