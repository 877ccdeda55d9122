"""Reruns: a record makes the same `Spec`, and overrides change it as usual."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from runner.config.compose import Composer
from runner.core.codec import encode
from runner.core.errors import ConfigError
from runner.core.launch_request import LaunchRequest, RecordedCode
from runner.core.model.release import CodeRef
from tests.golden.builders import plan

RELEASE, COMMIT = "0123456789abcdef", "c" * 40
FILES = {
    "conf/cluster/pair.yaml": (
        "defaults: [base]\n"
        "env: {OF: 'run ${run_id}', LR: '${task.args.lr}', E: '1e3'}\n"
        "host_python: /usr/bin/python3\n"
        "nodes:\n"
        "  gpu[01-04]: {gpus: 8}\n"
        "  gpu02: {env: {'A': yes}}\n"
    ),
    "conf/cluster/other.yaml": "defaults: [base]\nnodes: {x1: {}}\nenv: {O: 1}\n",
    "conf/cluster/shared.yaml": "defaults: [base]\nproject: /shared\nnodes: {x1: {}}\n",
    "conf/task/mine.yaml": "defaults: [base]\nscript: /work/t.py\nargs: {lr: 0.1, s: [1, 2]}\n",
    "conf/task/long.yaml": "# @package _global_\nlost_s: 60\ntask: {command: 'sleep 9'}\n",
}


def record(composed: LaunchRequest, code: CodeRef, folder: Path = Path("runs")) -> None:
    run = folder / composed.spec.run_id
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(composed.config_yaml)
    planned = replace(
        plan(1, 1),
        run_id=composed.spec.run_id,
        cluster=composed.spec.cluster.name,
        task=composed.spec.task.name,
        **dataclasses.asdict(code),
    )
    (run / "overrides.yaml").write_text("[]\n")
    (run / "plan.json").write_text(json.dumps(encode(planned)))
    (folder / "latest").unlink(missing_ok=True)
    (folder / "latest").symlink_to(run.name)


WORDS = ("cluster=pair", "task=mine", "cluster.only=[gpu[01-03]]", "cluster.nodes.gpu02.gpus=4")
PUSHED = CodeRef(release=RELEASE, subdirectory="exp", script="../t.py", commit=COMMIT)


def kept_code(run_id: str, code: CodeRef) -> RecordedCode:
    return RecordedCode(run_id, code, (Path.cwd() / "runs",))


@pytest.fixture(autouse=True)
def nothing_launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No run is on record in another folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def composer(composer_of: Callable[[Mapping[str, str]], Composer]) -> Composer:
    return composer_of(FILES)


COMPOSED: list[LaunchRequest] = []
"""What `first` composes, once: it differs from test to test by its folder alone."""


@pytest.fixture
def first(composer: Composer) -> LaunchRequest:
    if not COMPOSED:
        words = [*WORDS, "task.args.lr=0.3", "lost_s=20", "run_id=first"]
        COMPOSED.append(composer.compose(words))
    cluster = replace(COMPOSED[0].spec.cluster, project=str(Path.cwd()))
    spec = replace(COMPOSED[0].spec, cluster=cluster)
    composed = replace(COMPOSED[0], spec=spec, run_dir=Path.cwd() / "runs" / "first")
    record(composed, PUSHED)
    return composed


@pytest.fixture
def wrong(composer: Composer) -> Callable[..., str]:
    """Return what is said of words that cannot be composed."""

    def say(*words: str) -> str:
        with pytest.raises(ConfigError) as caught:
            composer.compose(words)
        return str(caught.value)

    return say


@pytest.mark.parametrize("name", ["first", "./runs/latest"])
def test_the_same_again(composer: Composer, first: LaunchRequest, name: str) -> None:
    """Whatever its files say by now; only its name, and so its folder, is new."""
    for file in (*Path("conf/cluster").iterdir(), *Path("conf/task").iterdir()):
        file.unlink()
    again = composer.compose([f"rerun={name}"])
    assert again.spec.run_id != "first"
    env = {**again.spec.cluster.env, "OF": "run first"}
    cluster = replace(again.spec.cluster, env=env)
    spec = replace(again.spec, cluster=cluster, run_id="first", run_dir="runs/first", rerun=None)
    assert spec == first.spec
    assert again.spec.cluster.env["OF"] == f"run {again.spec.run_id}"
    assert again.run_dir == Path.cwd() / "runs" / again.spec.run_id
    assert again.recorded_code == kept_code("first", PUSHED)
    assert (again.notes, again.spec.dry_run) == (("again: run first as recorded",), ())
    changed = {"run_id: first": f"run_id: {again.spec.run_id}", "rerun: null": "rerun: first"}
    text = first.config_yaml
    for before, after in changed.items():
        text = text.replace(before, after)
    assert again.config_yaml == text


@pytest.mark.usefixtures("first")
def test_words_change_it(composer: Composer) -> None:
    """As they change any other configuration; interpolations follow."""
    words = ["task.args.lr=0.5", "+task.args.x=1", "~task.args.s", "cluster.nodes.gpu03.gpus=2"]
    again = composer.compose(["rerun=first", *words, "dry_run=offline", "run_dir=there"])
    assert again.spec.task.words == ("--lr", "0.5", "--x", "1")
    assert [node.gpu_count for node in again.spec.nodes] == [8, 4, 2]
    assert again.spec.cluster.env["LR"] == "0.5"
    assert (again.spec.dry_run, again.run_dir) == (("offline",), Path.cwd() / "there")
    assert again.notes[0].endswith(f", with {' '.join(words)}")


def test_what_is_given_now_takes_the_place_of_recorded_words(composer: Composer) -> None:
    """Those that came after `--` too, however they were typed."""
    with_words = Composer(composer.files, ["--steps", "10", "--lr=0.3"], for_launches=False)
    first = with_words.compose([*WORDS, "run_id=first"])
    assert first.spec.task.words == ("--s", "1", "2", "--steps", "10", "--lr=0.3")
    assert first.spec.cluster.env["LR"] == "0.3"
    record(first, PUSHED)
    again = composer.compose(["rerun=first", "task.args.lr=0.5", "+task.args.steps=6"])
    assert again.spec.task.words == ("--lr", "0.5", "--s", "1", "2", "--steps", "6")
    with_words = Composer(composer.files, ["--lr", "0.5"], for_launches=False)
    again = with_words.compose(["rerun=first", "+task.args.x=1"])
    assert again.spec.task.words[:5] == ("--lr", "0.5", "--s", "1", "2")
    assert again.spec.task.words[5:] == ("--x", "1", "--steps", "10")


def test_another_cluster_or_task_in_its_place(composer: Composer, first: LaunchRequest) -> None:
    """The whole section is another; the rest stays, with the code."""
    again = composer.compose(["rerun=first", "cluster=other"])
    assert again.spec.cluster.name == "other"
    assert [node.name for node in again.spec.nodes] == ["x1"]
    assert (again.spec.cluster.env, again.spec.cluster.python) == ({"O": "1"}, "python3")
    assert (again.spec.task, again.spec.lost_s) == (first.spec.task, 20)
    assert again.recorded_code == kept_code("first", PUSHED)
    again = composer.compose(["rerun=first", "task=long", "cluster.env.LR=null"])
    assert (again.spec.task.name, again.spec.task.target) == ("long", "sleep")
    assert (again.spec.nodes, again.spec.lost_s) == (first.spec.nodes, 60)
    assert again.recorded_code == kept_code("first", replace(PUSHED, script=""))
    again = composer.compose(["rerun=first", "task.script=eval.py"])
    assert again.spec.task.name == "eval"
    assert again.spec.task.words == first.spec.task.words
    assert again.recorded_code == kept_code("first", replace(PUSHED, script=""))


@pytest.mark.usefixtures("first")
def test_code_that_no_release_holds(composer: Composer) -> None:
    """It is said that it may be another."""
    again = composer.compose(["rerun=first", "cluster=shared"])
    assert again.recorded_code is None
    told = f"the code is what is in /shared on the hosts now, not release {RELEASE}"
    assert again.notes[1] == told
    record(composer.compose(["cluster=shared", "task=mine", "run_id=second"]), CodeRef())
    again = composer.compose(["rerun=second"])
    assert (again.recorded_code, again.notes[1]) == (None, told.rpartition(",")[0])
    again = composer.compose(["rerun=second", "cluster=local"])
    assert again.notes[1] == "the code is what is in this folder now"
    again = composer.compose(["rerun=second", "cluster=other"])
    assert again.recorded_code is None
    assert again.notes[1] == "run second had no release: the code you stand in is what runs"


def test_code_is_not_that_of_the_folder_of_now(
    composer: Composer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`project: .` was the folder of then."""
    words = ["cluster=other", "cluster.project=.", "task.script=t.py", "run_id=third"]
    record(composer.compose(words), CodeRef())
    run = str(Path("runs/third").resolve())
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    again = composer.compose([f"rerun={run}"])
    assert again.spec.cluster.project == plan(1, 1).nodes[0].cwd
    assert again.spec.cluster.project != str(tmp_path / "sub")
    assert composer.compose([f"rerun={run}", "cluster.project=."]).spec.cluster.project == str(
        Path.cwd()
    )


def test_a_detached_run_is_detached_again(composer: Composer) -> None:
    """Which is said, because nobody has typed it."""
    record(composer.compose([*WORDS, "run_id=third", "detach=true"]), PUSHED)
    again = composer.compose(["rerun=third"])
    assert again.spec.detach
    assert again.notes[1] == "it is detached, as that run was; detach=false follows it"
    followed = composer.compose(["rerun=third", "detach=false"])
    assert not followed.spec.detach
    assert not any("detached" in note for note in followed.notes)


def test_shipped_tasks_are_those_it_ran(composer: Composer) -> None:
    """Unless it is to run something else."""
    record(composer.compose(["task=env", "run_id=shipped"]), CodeRef(tasks_hash="abc"))
    words = ["rerun=shipped", "task.args.x=1"]
    assert composer.compose(words).recorded_code == kept_code("shipped", CodeRef(tasks_hash="abc"))
    assert composer.compose(["rerun=shipped", "task=resnet18"]).recorded_code is None
    assert composer.compose(["rerun=shipped", "task=mine"]).recorded_code is None


def test_a_folder_for_all_runs_is_kept_and_one_for_one_run_is_not(composer: Composer) -> None:
    """A run never writes over another."""
    for number, folder in enumerate(("/data/${run_id}", "/data/mine")):
        record(composer.compose([*WORDS, f"run_dir={folder}", f"run_id=r{number}"]), PUSHED)
    assert composer.compose(["rerun=r0", "run_id=x"]).run_dir == Path("/data/x")
    assert composer.compose(["rerun=r1", "run_id=x"]).run_dir == Path.cwd() / "runs" / "x"


def test_runs_that_are_not_there(wrong: Callable[..., str], composer: Composer) -> None:
    """The message names those that are."""
    assert "there is no run x on record on this machine; there are none" in wrong("rerun=x")
    assert "no run was launched from this folder; on record are none" in wrong("rerun=latest")
    composed = composer.compose([*WORDS, "run_id=run-0"])
    for number in range(7):
        record(replace(composed, spec=replace(composed.spec, run_id=f"run-{number}")), PUSHED)
    told = wrong("rerun=run-9")
    assert "there is no run run-9 on record on this machine; there are run-" in told
    assert "did you mean rerun=run-" in told
    assert "there is no folder elsewhere/run-1" in wrong("rerun=elsewhere/run-1")
    assert "rerun names one run" in wrong("rerun=")
    defaults = "[runner_base, {cluster: pair}, {task: mine}, _self_]"
    Path("conf/runner.yaml").write_text(f"defaults: {defaults}\nrerun: run-1\n")
    told = wrong()
    assert told.startswith("conf/runner.yaml:2: rerun: is for the command line only\n")
    assert composer.compose(told.partition("such as runner ")[2].split()).recorded_code


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("config.yaml", None, "runs/first/config.yaml: .*damaged: No such file"),
        ("config.yaml", "cluster: {}\n", "damaged: it has no cluster or no task"),
        ("config.yaml", "cluster: {gpus: 1}\ntask: {}\n", "config.yaml:1: cluster.gpus: there is"),
        ("plan.json", "{}", "runs/first/plan.json: .*damaged"),
    ],
)
@pytest.mark.usefixtures("first")
def test_a_damaged_record(
    wrong: Callable[..., str], name: str, content: str | None, told: str
) -> None:
    """It is said which file, and nothing is started."""
    file = Path("runs/first") / name
    file.unlink()
    if content is not None:
        file.write_text(content)
    assert re.search(told, wrong("rerun=first"))


@pytest.mark.promise(12)
@pytest.mark.usefixtures("first")
def test_a_record_that_came_from_hosts_is_not_repeated(wrong: Callable[..., str]) -> None:
    """What a host says is not executed."""
    Path("runs/first/overrides.yaml").unlink()
    told = "rerun: this machine has that run from its hosts: no launch here made the record"
    assert told in wrong("rerun=first")


@pytest.mark.promise(12)
def test_record_has_no_say_in_what_hydra_calls(composer: Composer, first: LaunchRequest) -> None:
    """A host could have written it: callbacks, sweepers and defaults in it are dropped."""
    del first
    file = Path("runs/first/config.yaml")
    called = Path("called").absolute()
    callback = f"{{x: {{_target_: pathlib.Path.touch, self: {called}}}}}"
    text = f"defaults: [nope]\nhydra: {{callbacks: {callback}, sweeper: {{_target_: os.abort}}}}\n"
    file.write_text(file.read_text() + text)

    assert composer.compose(["rerun=first"]).spec.cluster.name == "pair"
    assert len(composer.sweep(["rerun=first", "lost_s=10,20"])) == 2
    assert not called.exists()
