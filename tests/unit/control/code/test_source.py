"""Code of a past run: the hosts' release, the same code here, or none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from runner.control.code.source import CodeOnHosts, open_code_source, shipped_tasks
from runner.core.errors import ConfigError
from runner.core.launch_request import LaunchRequest, RecordedCode
from runner.core.wire.plan import CodeRef
from tests.golden.builders import SHIPPED, spec


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
