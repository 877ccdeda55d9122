"""Code of a past run: the hosts' release, the same code here, or none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from runner.control.code.source import CodeOnHosts, RerunCode, open_code_source, shipped_tasks
from runner.core.errors import ConfigError, NotReady
from runner.core.launch_request import LaunchRequest, RecordedCode
from runner.core.spec import Deploy
from runner.core.wire.plan import CodeRef
from tests.golden.builders import SHIPPED, spec


def test_code_that_is_nowhere_is_refused(tmp_path: Path) -> None:
    """The hosts are named, and why the code here cannot take its place."""
    recorded = RecordedCode("first", CodeRef(release="0123"), (tmp_path / "runs",))
    source = RerunCode(recorded, spec(deploy=Deploy(enabled=True)), tmp_path)
    with pytest.raises(NotReady) as caught:
        source.release(["gpu2"])
    told = str(caught.value)
    assert told.startswith("rerun: run first ran release 0123, which is not on gpu2 (any more), ")
    assert "there is no train.py in" in told
    assert "    restore the code here as it was, and start again\n" in told


def test_a_module_that_is_not_shipped_is_refused() -> None:
    """It would fail on the hosts, at the start of the ranks."""
    CodeOnHosts(spec(task=SHIPPED), Path())
    hint = "there are runner.tasks.*, runner.examples.single"
    with pytest.raises(ConfigError, match=f"there is no runner.tasks.ddp\n +{hint}"):
        CodeOnHosts(spec(task=replace(SHIPPED, target="runner.tasks.ddp")), Path())


def test_shipped_tasks_have_to_be_the_same(tmp_path: Path) -> None:
    """They come with the runner, so another version has others."""
    shipped = LaunchRequest(spec(task=SHIPPED), tmp_path, "")
    same = RecordedCode("first", CodeRef(tasks_hash=shipped_tasks().hash), ())
    source = open_code_source(replace(shipped, recorded_code=same))
    assert source.code == same.code
    other = RecordedCode("first", CodeRef(tasks_hash="0"), ())
    with pytest.raises(ConfigError, match=r"ran runner\.tasks\.resnet18 of another version"):
        open_code_source(replace(shipped, recorded_code=other))
