"""Delivery of a notification that nobody waits for any more."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

from runner.core.notification.delivery import FailedDelivery, Place, deliver
from tests.lab.waiting import PATIENCE, wait_until

DATA = {"run_id": "0101-1200-train-abcd", "event": "end", "state": "succeeded"}


def test_a_command_is_killed_once_nobody_waits_for_it(tmp_path: Path) -> None:
    """It would have no owner: the launch ends, and its deadline with it."""
    command = f"echo $$ > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid; sleep 600; true"
    cancelled, failed = threading.Event(), list[FailedDelivery]()
    place = Place(os.environ, str(tmp_path), (), cancelled.is_set)
    work = threading.Thread(target=lambda: failed.extend(deliver([command], DATA, place)))
    work.start()
    wait_until((tmp_path / "pid").exists, "the command")

    cancelled.set()
    work.join(60 * PATIENCE)

    assert failed == [(command, "it was killed, as nobody waits for it any more")]
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_a_message_may_be_larger_than_a_pipe(tmp_path: Path) -> None:
    """Such as one of many nodes; whether the command reads it, and prints meanwhile, or not."""
    data = {**DATA, "text": "x" * (1 << 20)}
    place = Place(os.environ, str(tmp_path), ())
    commands = ["tee /dev/stderr | wc -c > size", "exec >&- 2>&-; cat > whole", "exec 0<&-; true"]

    assert deliver(commands, data, place) == []

    length = len(json.dumps(data)) + 1
    assert int((tmp_path / "size").read_text()) == length
    assert len((tmp_path / "whole").read_bytes()) == length
