"""Start of a supervisor: the run's folder with its copy of the code, and its environment."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
from dataclasses import replace
from typing import Any, Callable, Generator, Mapping, Optional

from runner.core.wire.order import Order
from runner.core.wire.paths import RunPaths
from runner.host.process.event_loop import run_steps
from runner.host.storage.checkout import check_out
from runner.host.storage.release_store import remove_tree
from runner.host.storage.run_folder import create_run_folder, write_atomic
from runner.host.supervisor import guardian
from runner.host.supervisor.recovery import recover_unfinished

StartSteps = Generator[Optional[Callable[[], object]], None, None]
"""Steps of which one yields what is to be called outside of the thread that does them."""


def prepare(
    folder: RunPaths,
    order: Order,
    programs: Mapping[str, str],
    record: Mapping[str, Any],
    spawn: Callable[[int], None],
) -> StartSteps:
    """Make the run's folder, with its copy of the code, and yield what starts the supervisor.

    `spawn` takes the descriptor of its log; `programs` and `record` as in `create_run_folder`.

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
        yield from create_run_folder(folder, order, programs, record)
        yield functools.partial(spawn, guardian.open_log(folder))
        return
    existed = os.path.lexists(folder.root)
    try:
        yield from create_run_folder(folder, order, programs, record)
        if order.release:
            yield from check_out(order.workdir, order.release, folder.work)
            write_atomic(folder.checked_out, "")
        yield functools.partial(spawn, guardian.open_log(folder))
    except BaseException as error:
        made = (folder.work, folder.attempt_folder(order.attempt))
        for path in made if existed else (folder.root,):  # nothing was started
            if isinstance(error, GeneratorExit):  # the controller has left
                run_steps(remove_tree(path))
            else:
                yield from remove_tree(path)
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
