"""The order of all tests."""

from __future__ import annotations

import signal

import pytest

for signum, handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
    (signal.SIGQUIT, signal.SIG_DFL),
):
    signal.signal(signum, handler)  # nohup, and the "&" of a shell, have us ignore them

USUAL_LIMIT_S = 180


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest tests first, those with a higher limit: none is to be left at the end."""
    items.sort(key=lambda item: not _is_long(item))


def _is_long(item: pytest.Item) -> bool:
    limit = item.get_closest_marker("timeout")
    return limit is not None and limit.args[0] > USUAL_LIMIT_S
