"""The controller lease: an attempt with it and without it."""

from __future__ import annotations

import time
from typing import cast

import pytest

from runner.core.model.plan import Order
from runner.host.storage.run_folder import EventLog
from runner.host.supervisor.peer_exchange import ControllerLease
from tests.unit.host.supervisor.test_stop_ladder import Journal


def test_a_controller_is_missing_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it was heard last; a run that is kept misses nobody."""
    order = Order("run", "b", 0, "/w", (), {}, "/", (), disconnect_s=10.0)
    lease = ControllerLease(order, cast("EventLog", Journal()))
    began = time.monotonic()
    now = began
    monkeypatch.setattr(time, "monotonic", lambda: now)
    now = began + 9
    assert lease.expiry_reason == ""
    now = began + 11
    left_s = lease.unattended_left_s
    assert left_s is not None
    assert round(left_s) == -1
    assert lease.expiry_reason == "no controller was attached for 10 s (disconnect_s)"
    lease.renew_from_peer(began + 5)
    assert lease.expiry_reason == ""
    now = began + 20
    lease.renew()
    assert lease.expiry_reason == ""
    now = began + 31
    lease.confirm_detach(stopping=False)
    assert lease.expiry_reason == ""
    assert lease.unattended_left_s is None
