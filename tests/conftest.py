"""The order of all tests, and where the product keeps what it knows of its user."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

for signum, handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
    (signal.SIGQUIT, signal.SIG_DFL),
):
    signal.signal(signum, handler)  # nohup, and the "&" of a shell, have us ignore them

LAB = Path(__file__).parent / "lab"


@pytest.fixture(autouse=True)
def nothing_on_record(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """No run of this user is on record; the lab's users have homes of their own."""
    if LAB not in request.path.parents:
        folder: Path = request.getfixturevalue("tmp_path")
        monkeypatch.setenv("XDG_STATE_HOME", str(folder.with_name(f"{folder.name}-state")))


@pytest.fixture(autouse=True, scope="session")
def state_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Nobody's own: an index of runs and the notes that were said."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put what waits long first and unit tests last, and deal them out: xdist cuts the list."""
    items.sort(key=_precedence)
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    items[:] = [item for number in range(workers) for item in items[number::workers]]


def _precedence(item: pytest.Item) -> int:
    if item.get_closest_marker("slow") is not None:
        return 0
    return 1 if LAB in item.path.parents else 2
