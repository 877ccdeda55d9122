"""Reruns: a record makes the same `Spec`, and overrides change it as usual."""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from runner.core.launch_request import LaunchRequest
from runner.core.wire.codec import encode
from runner.core.wire.plan import CodeRef
from tests.golden.builders import plan
from tests.golden.conftest import Replay
from tests.golden.here import Here
from tests.golden.test_specs import flat

PUSHED = CodeRef(release="0123456789abcdef", subdirectory="exp", script="../t.py", commit="c" * 40)


def record(here: Here, composed: LaunchRequest) -> None:
    """Write what a launch would of a run, and of its code."""
    code = PUSHED if composed.spec.pushes_code else CodeRef()
    if composed.spec.task.shipped_file:
        code = CodeRef(tasks_hash="abc")
    planned = replace(
        plan(1, 1),
        run_id=composed.spec.run_id,
        cluster=composed.spec.cluster.name,
        task=composed.spec.task.name,
        **dataclasses.asdict(code),
    )
    run = composed.run_dir
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(composed.config_yaml)
    (run / "overrides.yaml").write_text("[]\n")
    (run / "plan.json").write_text(json.dumps(encode(planned)))
    here.written |= {run.parent, *run.parent.rglob("*")}


@pytest.mark.promise(12)
def test_each_record_is_repeated_with_what_is_typed(here: Here, replay: Replay) -> None:
    """What differs from the record is said, with the code; interpolations follow.

    What a host may have written is not executed.
    """
    recorded: dict[str, LaunchRequest] = {}

    def launched(words: list[str]) -> str:
        said = here(*words)
        if not said.runs:
            return said.err
        run = said.run
        if not run.spec.rerun:
            recorded[run.spec.run_id] = run
            record(here, run)
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


def test_the_record_of_a_rerun_is_that_of_the_run(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for its name; `project: .` is the folder of then."""
    words = ("cluster=pair", "cluster.project=.", "task.script=t.py", "run_id=first")
    first = here(*words).run
    record(here, first)
    folder = here.folder / "sub"
    folder.mkdir()
    here.written.add(folder)
    monkeypatch.chdir(folder)
    again = here(f"rerun={first.run_dir}").run
    then = plan(1, 1).nodes[0].cwd
    assert (again.spec.cluster.project, again.recorded_code) == (then, None)
    text = first.config_yaml.replace("run_id: first", f"run_id: {again.spec.run_id}")
    text = text.replace("project: .", f"project: {then}")
    assert again.config_yaml == text.replace("rerun: null", "rerun: first")
    now = here(f"rerun={first.run_dir}", "cluster.project=.").run
    assert now.spec.cluster.project == str(Path.cwd())
