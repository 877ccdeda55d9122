"""The subject of `top`: when its run has ended, though not all hosts answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from runner.core.model.results import RemoteRun
from runner.core.model.run_info import HostRunStatus, RunInfo
from runner.core.protocol.states import State
from runner.workflows.top.subject import RunEnd, Subject

LOST = {"state": State.STOPPED, "alive": False, "lost_node": True}
SUCCEEDED = {"state": State.SUCCEEDED, "alive": False}


@pytest.mark.parametrize(
    ("status", "info", "state"),
    [
        (LOST, {}, "lost"),
        (LOST, {"relaunches_left": 1}, ""),
        (SUCCEEDED, {}, ""),
        ({**LOST, "alive": True}, {}, ""),
        ({**LOST, "relaunch_pending": True}, {}, ""),
    ],
)
def test_a_run_has_ended_if_it_cannot_be_on_where_no_host_answers(
    status: dict[str, Any], info: dict[str, Any], state: str
) -> None:
    """Then the hosts that do not answer are named with its end."""
    record = RunInfo("r1", nnodes=3, **info)
    names = ("a", "b")
    by_host = {
        name: HostRunStatus(record, "ada", changed_at=0.0, node=name, **status) for name in names
    }
    run = RemoteRun(record, by_host, dict(zip(names, names, strict=True)))
    watch: Any = SimpleNamespace(run_id="r1", remote_runs=(run,), is_settled=True, silent=("c",))
    end = Subject(cast("Any", None), is_run=True).end(watch)
    assert end == (RunEnd("r1", state, ("c",)) if state else None)
