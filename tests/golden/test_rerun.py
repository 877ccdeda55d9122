"""Reruns: a record makes the same `Spec`, and overrides change it as usual."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from runner.config.compose import Composer, open_composer
from runner.core.errors import ConfigError
from runner.core.launch_request import LaunchRequest, RecordedCode
from runner.core.wire.codec import encode
from runner.core.wire.plan import CodeRef
from tests.golden.builders import plan
from tests.golden.conftest import Replay
from tests.golden.here import Here, write
from tests.golden.test_specs import flat

RELEASE, COMMIT = "0123456789abcdef", "c" * 40
PAIR = """\
defaults: [base]
env: {OF: 'run ${run_id}', LR: '${task.args.lr}', E: '1e3'}
nodes:
  gpu[01-04]: {gpus: 8}
  gpu02: {env: {'A': yes}}
"""
MINE = "defaults: [base]\nscript: /work/t.py\nargs: {lr: 0.1, s: [1, 2]}\n"
FILES = {
    "conf/cluster/pair.yaml": PAIR,
    "conf/cluster/other.yaml": "defaults: [base]\nnodes: {x1: {}}\nenv: {O: 1}\n",
    "conf/task/mine.yaml": MINE,
}


def record(composed: LaunchRequest, code: CodeRef) -> None:
    run = composed.run_dir
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
    (run.parent / "latest").unlink(missing_ok=True)
    (run.parent / "latest").symlink_to(run.name)


WORDS = ("cluster=pair", "task=mine", "cluster.only=[gpu[01-03]]", "cluster.nodes.gpu02.gpus=4")
PUSHED = CodeRef(release=RELEASE, subdirectory="exp", script="../t.py", commit=COMMIT)


@pytest.fixture
def composer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Composer]:
    write(tmp_path, FILES)
    monkeypatch.chdir(tmp_path)
    with open_composer() as composer:
        yield composer


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


def code_of(run: LaunchRequest) -> CodeRef:
    """Return what a launch would have run, and put on record."""
    if run.spec.task.shipped_file:
        return CodeRef(tasks_hash="abc")
    return PUSHED if run.spec.pushes_code else CodeRef()


def test_each_record_is_repeated_with_what_is_typed(here: Here, replay: Replay) -> None:
    """What differs from the record is said, with the code; interpolations follow."""
    recorded: dict[str, LaunchRequest] = {}

    def launched(words: list[str]) -> str:
        said = here(*words)
        if not said.runs:
            return said.err
        run = said.run
        if not run.spec.rerun:
            recorded[run.spec.run_id] = run
            record(run, code_of(run))
            here.written |= {run.run_dir.parent, *run.run_dir.parent.rglob("*")}
            return f"  {run.spec.task.target} {shlex.join(run.spec.task.words)}\n"
        before = dict(flat(encode(recorded[run.spec.rerun].spec)))
        changes = [
            f"  {key}: {value}\n"
            for key, value in flat(encode(run.spec))
            if before.get(key, ()) != value and key not in ("run_id", "rerun")
        ]
        notes = [f"  note: {note}\n" for note in run.notes]
        code = run.recorded_code.code if run.recorded_code else CodeRef()
        kept = " ".join(filter(None, (code.release, code.script, code.tasks_hash)))
        page = [*changes, *notes, f"  code: {kept or 'none'}\n", f"  in {run.run_dir}\n"]
        text = "".join(page).replace(run.spec.run_id, "RUN_ID")
        return text.replace(sys.executable, "PYTHON")

    replay("reruns.txt", launched)


def test_the_record_of_a_rerun_is_that_of_the_run(composer: Composer, first: LaunchRequest) -> None:
    """But for its name; a folder names a run, too."""
    again = composer.compose(["rerun=./runs/latest"])
    text = first.config_yaml.replace("run_id: first", f"run_id: {again.spec.run_id}")
    assert again.config_yaml == text.replace("rerun: null", "rerun: first")
    assert again.recorded_code == RecordedCode("first", PUSHED, (Path.cwd() / "runs",))


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
