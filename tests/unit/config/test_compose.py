"""Values of a run, and what a verb composes: only what reaches the hosts, and what it needs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.config.compose import Composer, open_composer
from runner.config.resolve import new_run_id
from runner.core.errors import ConfigError
from tests.golden.here import write
from tests.golden.test_specs import spec_of

UNSET = "${oc.env:NOT_SET_ANYWHERE}"
CLUSTER = f"""
defaults: [base]
nodes:
  a: {{host: 10.0.0.1, user: ada, env: {{TOKEN: "{UNSET}"}}}}
  gpu[1-2]: {{}}
exclude: [gpu2]
workdir: /scratch/${{oc.env:USER_OF_TEST}}
python: /opt/venv/bin/python
env: {{DATA: "{UNSET}"}}
secrets: [NOT_SET_ANYWHERE]
pass_env: [NOT_SET_ANYWHERE]
"""
RUNNER = f"""
defaults: [cluster: mine, task: base, rendezvous: etcd, _self_]
relaunch: {{max: "{UNSET}"}}
lost_s: 7
progress: {{pattern: 'it ([0-9]+)'}}
"""


@pytest.fixture
def composer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Composer]:
    """A project whose launches need what is not there: a task, secrets, variables, an etcd."""
    write(tmp_path, {"conf/cluster/mine.yaml": CLUSTER, "conf/runner.yaml": RUNNER})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("USER_OF_TEST", "ada")
    monkeypatch.delenv("NOT_SET_ANYWHERE", raising=False)
    with open_composer() as composer:
        yield composer


def problems(composer: Composer, *words: str, keys: tuple[str, ...] | None = ()) -> set[str]:
    with pytest.raises(ConfigError) as caught:
        composer.compose(words, keys)
    return {problem.subject for problem in caught.value.problems}


def test_only_what_reaches_the_hosts_is_judged(composer: Composer) -> None:
    """Nodes, log-in, folders and limits are there; a launch needs all the rest."""
    spec = composer.compose([], ()).spec
    assert [(node.name, node.host, node.user) for node in spec.nodes] == [
        ("a", "10.0.0.1", "ada"),
        ("gpu1", "gpu1", None),
    ]
    assert (spec.cluster.workdir, spec.lost_s, spec.cluster.host_python) == (
        "/scratch/ada",
        7.0,
        "/opt/venv/bin/python",
    )
    assert spec.progress.pattern == "it ([0-9]+)", "`attach` takes no other"
    assert (spec.cluster.env, spec.secrets, spec.cluster.setup) == ({}, {}, ())
    assert problems(composer, keys=None)


def test_overrides_of_nodes_are_a_launchs(composer: Composer) -> None:
    """Also of a member of a range; a name that is misspelt is refused."""
    words = ["cluster.nodes.gpu1.port=2222", "task.nnodes=1", "cluster.only=[gpu1]"]
    (node,) = composer.compose(words, ()).spec.nodes
    assert (node.name, node.port) == ("gpu1", 2222)
    assert problems(composer, "cluster.nodes.gpu9.port=1") == {"cluster.nodes.gpu9.port"}
    assert problems(composer, f"cluster.nodes={UNSET}", *words) == {"cluster.nodes"}


def test_what_reaches_the_hosts_is_refused_as_ever(composer: Composer) -> None:
    """A variable that is not set, a value of the wrong kind, no key; what a verb itself needs."""
    assert problems(composer, f"cluster.workdir={UNSET}") == {"cluster.workdir"}
    assert problems(composer, "lost_s=soon") == {"lost_s"}
    assert problems(composer, "+cluster.workdri=/x") == {"cluster.workdri"}
    assert problems(composer, keys=("relaunch",)) == {"conf/runner.yaml:3: relaunch.max"}


@pytest.mark.parametrize("choice", ["task: gone", "task: broken", "rendezvous: gone"])
def test_files_of_a_launch_may_be_gone_or_broken(composer: Composer, choice: str) -> None:
    """A launch and a word that chooses one say so, a verb needs none of them."""
    Path("conf/task").mkdir()
    Path("conf/task/broken.yaml").write_text("script: [")
    Path("conf/runner.yaml").write_text(f"defaults: [cluster: mine, {choice}]")
    words = ["cluster.nodes.gpu1.port=2222"]
    assert composer.compose(words, ()).spec.nodes[1].port == 2222
    assert problems(composer, keys=None)
    word = choice.replace(": ", "=")
    assert problems(composer, word, keys=None) == problems(composer, word)
    assert problems(composer, "cluster=nope") == {"cluster=nope"}
    assert composer.compose(["task.script=x.py"], ()).spec.nodes


def test_run_ids_are_safe_names() -> None:
    """For a file, a label and a rendezvous, whatever the task is called."""
    for task in ("resnet18", "Vision/ResNet_50", "ß", "", "x" * 90, "-a-"):
        made = new_run_id(task)
        assert re.fullmatch(r"\d{4}-\d{4}-[a-z0-9][a-z0-9-]{0,39}-[0-9a-z]{4}", made), task


def test_the_project_is_where_the_user_stands_as_they_see_it(tmp_path: Path) -> None:
    """Through a symbolic link it has the link's name; a stale PWD counts for nothing."""
    real = tmp_path / "real"
    link = tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)

    def project(pwd: Path, value: str | None = None) -> str:
        return spec_of({"cluster.project": value}, {"PWD": str(pwd)}, str(real)).cluster.project

    assert project(link) == str(link)
    assert project(tmp_path) == str(real)
    assert project(link, "sub") == str(link / "sub")
    assert project(link, "/shared/code") == "/shared/code"
