"""Bounded children of a process with threads."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from runner.host.process.bounded_child import BoundedChild, wait_all

QUERY = "from runner.host.gpu import query; query.start(9.0, health=True).kill()"
SURVEY = """
from runner.core.wire.facts import FactsRequest
from runner.host.facts import collect
request = FactsRequest("n1", tasks_hash="a", release="b", find_users=True)
collect._start_survey(request, collect._static_facts(request)).kill()
"""


@pytest.mark.parametrize(
    ("start", "modules"),
    [
        (QUERY, {"runner.host.gpu.nvml"}),
        (SURVEY, {"runner.host.storage.pool"}),
    ],
)
def test_what_a_child_needs_is_imported_before_the_fork(start: str, modules: set[str]) -> None:
    """There, the lock of a module that another thread was importing is never released."""
    code = f"{start}\nimport sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert modules <= {*done.stdout.split()}


def test_a_process_that_has_the_number_of_a_group_again_is_spared() -> None:
    """The group was empty then."""
    child = BoundedChild(lambda: None, 9.0)
    wait_all([child])
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as other:
        child.pid = other.pid
        child.kill_group()
        other.terminate()
    assert other.returncode == -signal.SIGTERM
