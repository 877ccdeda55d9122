"""Origins of values: the setting that won, and those it overrides."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra

from runner.config.compose import Composer, open_composer
from runner.config.search_path import shipped_folder
from runner.core.errors import ConfigError
from runner.core.history.run_data import flat_config
from runner.core.model.results import Origin
from runner.core.model.spec import LaunchRequest

FILES = {
    "conf/cluster/lab.yaml": (
        "defaults: [base]\n"
        "python: /lab/python\n"
        "gpus_per_node: 8\n"
        "ssh: {user: lab}\n"
        "env: {A: 1, B: 2}\n"
        "nodes:\n"
        "  gpu[01-16]: {gpus: 4, user: null}\n"
        "  gpu05:\n"
        "    gpus: 6\n"
        "    env: {C: 3}\n"
        "  gpu[05-06]: {env: {C: null}, transport: null}\n"
        "  gpu20: {}\n"
        "  '7': {port: 7}\n"
    ),
    "conf/cluster/mine.yaml": (
        "defaults: [lab]\n\npython: /mine/python\nenv:\n  B: 20\nworkdir: /${.python}/w\n"
    ),
    "conf/cluster/first.yaml": "defaults: [_self_, lab]\npython: /first/python\nworkdir: /first\n",
    "conf/cluster/local.yaml": "defaults: [base]\nnodes: {own: {}}\n",
    "conf/task/t.yaml": (
        "defaults: [base]\nscript: t.py\nargs: {token: 'x${oc.env:TOKEN}', list: [1, 2]}\n"
    ),
    "conf/task/u.yaml": "defaults: [t]\nargs: {home: '${oc.env:NOT_THERE_1}'}\nenv: ${.args}\n",
    "conf/task/all.yaml": "# @package _global_\nlost_s: 60\ntask: {script: g.py}\n",
}


@pytest.fixture
def composer(composer_of: Callable[[Mapping[str, str]], Composer]) -> Composer:
    """What composes a user's own files, in the folder they stand in."""
    return composer_of(FILES)


@pytest.fixture
def one(composer: Composer) -> Callable[..., Origin]:
    """Return the origin of one key under words of the command line."""

    def ask(key: str, *words: str) -> Origin:
        task = [] if "task=u" in words else ["task=t"]
        (origin,) = composer.origins([*task, *words], key)
        assert origin.key == key
        return origin

    return ask


def told(origin: Origin) -> list[str]:
    """Return the places of an origin as one line each."""
    return [
        f"{s.where} says {s.value}" + (f" for {s.key}" if s.key != origin.key else "")
        for s in origin.settings
    ]


def test_the_command_line_a_file_its_parent_and_the_default(one: Callable[..., Origin]) -> None:
    """All that set it, the winner first."""
    origin = one("cluster.python", "cluster=mine", "cluster.python=a", "++cluster.python=b")
    assert (origin.value, origin.written, origin.problem) == ("b", "", "")
    assert told(origin) == [
        "command line: ++cluster.python=b says b",
        "command line: cluster.python=a says a",
        "conf/cluster/mine.yaml:3 says /mine/python",
        "conf/cluster/lab.yaml:2 says /lab/python",
        "default says python3",
    ]


def test_the_order_of_a_defaults_list_counts(one: Callable[..., Origin]) -> None:
    """Where `_self_` comes first, the parent wins, and even the schema does."""
    origin = one("cluster.python", "cluster=first")
    assert told(origin)[:2] == [
        "conf/cluster/lab.yaml:2 says /lab/python",
        "default says python3",
    ]
    origin = one("cluster.workdir", "cluster=first")
    assert (origin.value, origin.settings[0].where) == ("~/.runner", "default")
    assert told(origin)[1] == "conf/cluster/first.yaml:3 says /first"


def test_a_mapping_comes_from_several_files(composer: Composer) -> None:
    """Every value below a key has its own origin; nothing else is in the answer."""
    words = ["cluster=mine", "task=t", "cluster.env.N=1"]
    origins = composer.origins(words, "cluster.env")
    assert {o.key: (o.value, *told(o)) for o in origins} == {
        "cluster.env.A": ("1", "conf/cluster/lab.yaml:5 says 1"),
        "cluster.env.B": (
            "20",
            "conf/cluster/mine.yaml:5 says 20",
            "conf/cluster/lab.yaml:5 says 2",
        ),
        "cluster.env.N": ("1", "command line: cluster.env.N=1 says 1"),
    }


def test_interpolations_are_shown_both_ways(one: Callable[..., Origin]) -> None:
    """What it comes to, and what is written."""
    origin = one("cluster.workdir", "cluster=mine")
    assert (origin.value, origin.written) == ("//mine/python/w", "/${.python}/w")
    origin = one("cluster.host_python", "cluster=mine")
    assert (origin.value, origin.written) == ("/mine/python", "${.python}")
    origin = one("run_dir")
    assert (origin.value, origin.written) == ("runs/MMDD-HHMM-TASK-xxxx", "runs/${run_id}")


def test_what_cannot_be_resolved_is_said(one: Callable[..., Origin]) -> None:
    """It is no reason not to answer."""
    origin = one("task.args.home", "task=u")
    assert (origin.value, origin.written) == ("${oc.env:NOT_THERE_1}", "")
    assert origin.problem == "NOT_THERE_1 is not set in this shell's environment"


def test_secrets_are_not_shown(one: Callable[..., Origin], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is made of them."""
    monkeypatch.setenv("TOKEN", "hunter2")
    assert one("task.args.token").value == "xhunter2"
    assert one("task.args.token", "cluster.secrets=[TOKEN]").value == "x***"


def test_a_users_file_shadows_a_shipped_one(one: Callable[..., Origin]) -> None:
    """The file that is read is the one that is named."""
    assert told(one("cluster.nodes.own.addr", "cluster=local")) == ["default says null"]
    (place, *_) = told(one("cluster.transport", "cluster=lab3"))
    assert place == f"{shipped_folder()}/cluster/lab3.yaml:4 says ssh"
    assert told(one("cluster.transport", "cluster=local")) == ["default says ssh"]


def test_a_file_may_speak_of_everything(composer: Composer) -> None:
    """`# @package _global_`: its keys are from the top."""
    (origin,) = composer.origins(["cluster=lab", "task=all"], "lost_s")
    assert (origin.value, told(origin)) == (
        "60.0",
        ["conf/task/all.yaml:2 says 60", "default says 15.0"],
    )


def test_a_program_alone_says_where_its_task_is_from(composer: Composer) -> None:
    """The default task is set aside, so it is not in the answer; ranges are shown as typed."""
    words = ["cluster=lab", "task.script=x.py", "cluster.only=gpu[01-02]"]
    (origin,) = composer.origins(words, "task.script")
    assert told(origin) == ["command line: task.script=x.py says x.py", "default says null"]
    (origin,) = composer.origins(words, "cluster.only")
    assert origin.settings[0].where == "command line: cluster.only=gpu[01-02]"


@pytest.mark.parametrize(
    ("key", "value", "places"),
    [
        (
            "gpu03.gpus",
            "4",
            [
                "conf/cluster/lab.yaml:7 says 4 for cluster.nodes.gpu[01-16].gpus",
                "conf/cluster/lab.yaml:3 says 8 for cluster.gpus_per_node",
                "default says auto for cluster.gpus_per_node",
            ],
        ),
        (
            "gpu05.gpus",
            "6",
            [
                "conf/cluster/lab.yaml:9 says 6",
                "conf/cluster/lab.yaml:7 says 4 for cluster.nodes.gpu[01-16].gpus",
                "conf/cluster/lab.yaml:3 says 8 for cluster.gpus_per_node",
                "default says auto for cluster.gpus_per_node",
            ],
        ),
        (
            "gpu20.gpus",
            "8",
            [
                "conf/cluster/lab.yaml:3 says 8 for cluster.gpus_per_node",
                "default says auto for cluster.gpus_per_node",
            ],
        ),
        (
            "gpu03.user",
            "lab",
            [
                "conf/cluster/lab.yaml:4 says lab for cluster.ssh.user",
                "default says null for cluster.ssh.user",
                "conf/cluster/lab.yaml:7 says null for cluster.nodes.gpu[01-16].user",
            ],
        ),
        ("gpu05.env.C", "3", ["conf/cluster/lab.yaml:10 says 3"]),
        ("gpu06.env.C", "null", ["default says null"]),
        ("gpu05.transport", "ssh", ["default says ssh for cluster.transport"]),
        ("gpu05.host", "gpu05", ["default says gpu05"]),
        ("gpu[01-16].gpus", "4", ["conf/cluster/lab.yaml:7 says 4"]),
        (
            "7.port",
            "7",
            ["conf/cluster/lab.yaml:13 says 7", "default says null for cluster.ssh.port"],
        ),
    ],
)
def test_nodes_of_ranges(
    key: str, value: str, places: list[str], one: Callable[..., Origin]
) -> None:
    """Which entry it is from: the last that says it, else the cluster's own key."""
    origin = one(f"cluster.nodes.{key}", "cluster=lab")
    assert (origin.value, told(origin)) == (value, places)


def test_the_command_line_wins_over_later_entries(one: Callable[..., Origin]) -> None:
    """For a node that only a range makes, and for one with an entry of its own."""
    for node in ("gpu03", "gpu05"):
        word = f"cluster.nodes.{node}.gpus=1"
        origin = one(f"cluster.nodes.{node}.gpus", "cluster=lab", word)
        assert (origin.value, origin.settings[0].where) == ("1", f"command line: {word}")


def test_a_whole_node(composer: Composer) -> None:
    """Every key a node can have, with what holds for it."""
    origins = composer.origins(["cluster=lab", "task=t"], "cluster.nodes.gpu05")
    assert {o.key.removeprefix("cluster.nodes.gpu05."): o.value for o in origins} == {
        "host": "gpu05",
        "addr": "null",
        "user": "lab",
        "port": "null",
        "gpus": "6",
        "nproc_per_node": "auto",
        "env.C": "3",
        "transport": "ssh",
        "interface": "null",
    }


def test_what_the_trace_says_is_what_a_run_gets(composer: Composer) -> None:
    """For the GPUs of every node."""
    words = ["cluster=lab", "task=t", "cluster.nodes.gpu02.gpus=2", "task.args.token=1"]
    nodes = composer.compose(words).spec.nodes
    for node in (nodes[0], nodes[1], nodes[4], nodes[16]):
        (origin,) = composer.origins(words, f"cluster.nodes.{node.name}.gpus")
        assert origin.value == str(node.gpu_count)
    assert len(nodes) == 18


def test_the_whole_configuration(composer: Composer) -> None:
    """Every value has an origin, and all of it is plain data."""
    origins = composer.origins(["cluster=mine", "task=t"])
    keys = [origin.key for origin in origins]
    assert {"cluster.python", "task.args.list", "lost_s", "deploy.keep", "ui"} <= set(keys)
    assert all(origin.settings for origin in origins)
    assert not any(key.startswith("hydra") for key in keys)
    assert json.loads(json.dumps([dataclasses.asdict(each) for each in origins]))


def test_the_meaning_of_a_key_is_told(one: Callable[..., Origin]) -> None:
    """Of those of the schema, also of a node; what is below an open key is the user's own."""
    assert one("lost_s").meaning.endswith("without a heartbeat (seconds, more than 0)")
    assert one("cluster.nodes.gpu05.gpus", "cluster=lab").meaning.startswith("how many GPUs to use")
    assert one("task.args.token", "task.args.token=1").meaning == ""


@pytest.mark.parametrize(
    ("key", "words", "wanted"),
    [
        ("cluster.pyhton", [], "did you mean cluster.python?"),
        ("gpus_per_node", [], "did you mean cluster.gpus_per_node?"),
        ("cluster.nodes.gpu21", [], "cluster.nodes.gpu21: there is no node gpu21; the nodes are"),
        ("cluster.nodes.gpu03.gpu", [], "did you mean cluster.nodes.gpu03.gpus?"),
        ("cluster.nodes.gpu05.env.D", [], "there is no such key; legal here: C"),
        ("cluster.python.x", [], "there is nothing below cluster.python: /lab/python"),
        ("cluster.env.A", ["~cluster.env.A"], "cluster.env.A: ~cluster.env.A removed it"),
        ("hydra.job", [], "hydra: there is no such key"),
    ],
)
def test_keys_that_do_not_exist(
    key: str, words: list[str], wanted: str, composer: Composer
) -> None:
    """The nearest ones are named, or who took it away."""
    with pytest.raises(ConfigError) as caught:
        composer.origins(["cluster=lab", "task=t", *words], key)
    (problem,) = caught.value.problems
    assert wanted in str(problem)


def test_what_cannot_be_composed_is_told(composer: Composer) -> None:
    """In the same words as for a run."""
    with pytest.raises(ConfigError, match="there is no cluster 'lab9'"):
        composer.origins(["cluster=lab9"], "cluster")


def test_the_configuration_as_yaml(composer: Composer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Hydra's part; what the environment says is in it only on demand."""
    monkeypatch.setenv("TOKEN", "hunter2")
    words = ["cluster=mine", "task=t", "task.args.text='1e3'"]
    whole = yaml.safe_load(composer.yaml(words))
    assert list(whole)[:2] == ["cluster", "task"]
    assert "hydra" not in whole
    assert (whole["task"]["args"]["token"], whole["run_id"]) == ("x${oc.env:TOKEN}", None)
    assert composer.yaml(words, "cluster.python") == "/mine/python\n"
    assert composer.yaml(words, "cluster.host_python", resolve=True) == "/mine/python\n"
    assert "text: '1e3'" in composer.yaml(words, "task.args")
    args = yaml.safe_load(composer.yaml(words, "task.args", resolve=True))
    assert args == {"token": "xhunter2", "list": [1, 2], "text": "1e3"}


def test_what_of_the_yaml_cannot_be_resolved(composer: Composer) -> None:
    """It is told, unless it is elsewhere than what was asked for."""
    assert composer.yaml(["cluster=mine", "task=u"], "cluster.python", resolve=True)
    with pytest.raises(ConfigError, match="NOT_THERE_1 is not set"):
        composer.yaml(["cluster=mine", "task=u"], "task", resolve=True)
    with pytest.raises(ConfigError, match="NOT_THERE_1 is not set"):
        composer.yaml(["cluster=mine", "task=u"], "task.env", resolve=True)
    with pytest.raises(ConfigError, match=r"did you mean task\.args\?"):
        composer.yaml(["cluster=mine", "task=u"], "task.arg")


def places_of(request: LaunchRequest) -> Mapping[str, str]:
    """The place of every key of what is launched."""
    assert request.origins is not None
    places = request.origins()
    assert list(places) == list(flat_config(yaml.safe_load(request.config_yaml)))
    return places


def test_a_launch_knows_the_place_of_every_key(
    composer: Composer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same that explain names, without values of the environment."""
    monkeypatch.setenv("TOKEN", "hunter2")
    words = ["cluster=mine", "task=t", "task.args.list=[3]", "~lost_s", "task={args:{x:2}}"]
    places = places_of(composer.compose([*words, "cluster.nodes.gpu05.env.C=4"]))
    assert places["cluster.python"] == "conf/cluster/mine.yaml:3"
    assert places["cluster.nodes.gpu05.gpus"] == "conf/cluster/lab.yaml:9"
    assert places["cluster.nodes.gpu05.env.C"] == "command line: cluster.nodes.gpu05.env.C=4"
    assert places["task.args.list"] == "command line: task.args.list=[3]"
    assert places["task.args.token"] == "conf/task/t.yaml:3"
    assert places["lost_s"] == "command line: ~lost_s"
    assert places["task.args.x"] == "command line: task={args:{x:2}}"
    assert places["grace_s"] == places["run_id"] == "default"
    assert "hunter2" not in str(places)
    explained = {each.key: each.settings[0].where for each in composer.origins(words)}
    others = {key: where for key, where in places.items() if not key.startswith("cluster.nodes.")}
    assert others == {key: where for key, where in explained.items() if key in others}


@pytest.mark.usefixtures("composer")
def test_the_places_are_those_of_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread finds them later, of files that were edited since, and without Hydra."""
    with open_composer(arguments=("--lr", "1 2")) as other:
        request = other.compose(["cluster=mine", "task.command=true"])
    Path("conf/cluster/mine.yaml").write_text("# edited\n" * 9)
    Path("conf/cluster/lab.yaml").unlink()
    monkeypatch.setattr(ConfigStore.instance(), "repo", {})
    monkeypatch.setattr(GlobalHydra, "instance", lambda: pytest.fail("it is not for threads"))
    found: list[Mapping[str, str]] = []
    thread = threading.Thread(target=lambda: found.append(places_of(request)))
    thread.start()
    thread.join()
    (places,) = found
    assert places["cluster.python"] == "conf/cluster/mine.yaml:3"
    assert places["cluster.gpus_per_node"] == "conf/cluster/lab.yaml:3"
    assert places["task.extra_args"] == "command line: -- --lr '1 2'"
    assert places["cluster.transport"] == "default"


def test_each_run_of_a_sweep_has_its_own_places(
    composer: Composer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The value that it has of several."""
    monkeypatch.setenv("TOKEN", "x")
    runs = composer.sweep(["cluster=lab,mine", "task=t", "task.args.x=1,2", "lost_s=30"])
    assert [(p["cluster.python"], p["task.args.x"], p["lost_s"]) for p in map(places_of, runs)] == [
        (f"conf/cluster/{file}", f"command line: task.args.x={x}", "command line: lost_s=30")
        for file in ("lab.yaml:2", "mine.yaml:3")
        for x in (1, 2)
    ]
    with contextlib.suppress(ConfigError):
        composer.compose(["cluster=lab", "task=none"])
    assert places_of(runs[3])["cluster.python"] == "conf/cluster/mine.yaml:3"
