"""Start of a supervisor: the run's folder with its copy of the code, and its environment."""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import replace
from typing import Any, Callable, Mapping

from runner.core.wire.order import Order
from runner.core.wire.paths import RunPaths
from runner.host.storage.garbage import remove_tree
from runner.host.storage.pool import check_out
from runner.host.storage.run_folder import create_run_folder, write_atomic
from runner.host.supervisor import guardian
from runner.host.supervisor.recovery import recover_unfinished


def prepare(
    folder: RunPaths,
    order: Order,
    programs: Mapping[str, str],
    record: Mapping[str, Any],
    spawn: Callable[[int], int],
) -> int:
    """Make the run's folder, with its copy of the code, and start the supervisor.

    `spawn` does so, with the descriptor of its log, and what it returns is returned. `programs`
    and `record` are those of `create_run_folder`.

    A later attempt, and a node that rejoins, continue in the folder of an earlier one if there
    is one.
    """
    if not (order.attempt or order.rejoin_count) and os.path.lexists(folder.root):
        raise ValueError(f"there is a run {order.run_id} in {order.workdir} already")
    if order.attempt or order.rejoin_count:
        recover_unfinished(folder)
    if os.path.lexists(folder.stop_marker):
        raise ValueError("a stop of the run was requested")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(folder.relaunch_marker)
    if os.path.lexists(folder.work):
        create_run_folder(folder, order, programs, record)
        return spawn(guardian.open_log(folder))
    existed = os.path.lexists(folder.root)
    try:
        create_run_folder(folder, order, programs, record)
        if order.release:
            check_out(order.workdir, order.release, folder.work)
            write_atomic(folder.checked_out, "")
        return spawn(guardian.open_log(folder))
    except BaseException:
        made = (folder.work, folder.attempt_folder(order.attempt))
        for path in made if existed else (folder.root,):  # nothing was started
            remove_tree(path)
        with contextlib.suppress(OSError):  # another node has a part of the run there
            os.rmdir(os.path.dirname(folder.root))
        raise


def with_numeric_hub(order: Order) -> Order:
    """Look up the hub's name here: the supervisor must never wait for a resolver."""
    if order.hub is None:
        return order
    try:
        addresses = socket.getaddrinfo(order.hub.addr, order.hub.port, type=socket.SOCK_STREAM)
    except OSError:
        return order  # the supervisor will say that it cannot reach it
    return replace(order, hub=replace(order.hub, addr=str(addresses[0][4][0])))
