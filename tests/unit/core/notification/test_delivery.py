"""Delivery of a notification that nobody waits for any more."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from runner.core.notification.delivery import FailedDelivery, Place, deliver
from tests.lab.waiting import wait_until

DATA = {"run_id": "0101-1200-train-abcd", "event": "end", "state": "succeeded"}


def test_a_command_is_killed_once_nobody_waits_for_it(tmp_path: Path) -> None:
    """It would have no owner: the launch ends, and its deadline with it."""
    command = f"echo $$ > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid; sleep 600; true"
    cancelled, failed = threading.Event(), list[FailedDelivery]()
    place = Place(os.environ, str(tmp_path), (), cancelled.is_set)
    work = threading.Thread(target=lambda: failed.extend(deliver([command], DATA, place)))
    work.start()
    wait_until((tmp_path / "pid").exists, "the command")
    began = time.monotonic()

    cancelled.set()
    work.join(10)

    assert time.monotonic() - began < 5
    assert failed == [(command, "it was killed, as nobody waits for it any more")]
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()
