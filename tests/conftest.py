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


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put slow tests first: none is to be left alone at the end."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
