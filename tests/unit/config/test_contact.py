"""What a verb composes: only what reaches the hosts, and what it needs itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.config.compose import Composer, open_composer
from runner.core.errors import ConfigError
from tests.golden.here import write

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
    """A variable that is not set, a value of the wrong kind, a key that is no key."""
    assert any(
        "cluster.workdir" in place for place in problems(composer, f"cluster.workdir={UNSET}")
    )
    assert problems(composer, "lost_s=soon") == {"lost_s"}
    assert problems(composer, "+cluster.workdri=/x") == {"cluster.workdri"}


def test_a_verb_adds_the_keys_it_needs(composer: Composer) -> None:
    """What a section needs that is not there is said."""
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
