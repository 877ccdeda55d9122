"""The runs of this host, as their folders tell of them."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from typing import Any, Dict, Generator, Optional

from runner.core.codec import decode, encode
from runner.core.model.run_info import RunInfo, RunSeen
from runner.core.protocol.paths import RunFolder, folder_of, is_run_id
from runner.core.protocol.states import State
from runner.host.facts import machine
from runner.host.storage import release_store, run_owner
from runner.host.storage.run_folder import last_end, read_state
from runner.host.storage.run_lock import Doorway


def runs(workdir: str, node: str, run_id: str = "") -> Generator[None, None, Dict[str, Any]]:
    """List the runs of `node` below a workdir: all, or one.

    Returns:
        `runs`, each an encoded `RunSeen`; `hidden`, how many belong to others who do not let us
        look; `now`, this host's clock.
    """
    found, hidden = [], 0
    top = os.path.join(workdir, "runs")
    names = [run_id] if run_id else filter(is_run_id, sorted(release_store.names(top)))
    for name in names:
        yield
        try:
            seen = see(folder_of(workdir, name, node))
        except PermissionError:
            hidden += 1
            continue
        if seen is not None:
            found.append(encode(seen))
    return {"runs": found, "hidden": hidden, "now": time.time()}


def see(folder: RunFolder) -> Optional[RunSeen]:
    """Return one run, None where it has no part on this node.

    Raises:
        PermissionError: It is another user's, who does not let us look.
    """
    try:
        owner = os.stat(folder.root).st_uid
        os.listdir(folder.root)
    except (FileNotFoundError, NotADirectoryError):
        return None
    run_id, node = folder.root.split("/")[-2:]
    info = replace(_info(folder) or RunInfo(run_id), run_id=run_id)  # of a copied folder as well
    state = read_state(folder)
    doorway = Doorway(run_id, node, owner)
    changed = max(_changed(path) for path in (folder.root, folder.state))
    alive = doorway.held or bool(run_owner.keepers(folder))
    if state is not None and not state.terminal and run_owner.elsewhere(folder):
        alive = run_owner.silence(folder) < run_owner.FRESH_S  # as far as can be told from here
    if state is None and os.path.exists(folder.order):
        state = State.STARTING  # it was, at least, before a power cut
    if not alive and state is not None and not state.terminal:
        state = last_end(folder, info.attempt) or state
    waits = not alive and time.time() < _changed(folder.waiting)
    return RunSeen(info, machine.user_name(owner), state, alive, changed, waits)


def _info(folder: RunFolder) -> Optional[RunInfo]:
    """Return what is on record of the whole run; format 1 has the order only."""
    for path in (folder.info, folder.order):
        try:
            with open(path, encoding="utf-8") as file:
                return decode(RunInfo, json.load(file))
        except PermissionError:
            raise
        except (OSError, ValueError):
            continue
    return None


def _changed(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0
