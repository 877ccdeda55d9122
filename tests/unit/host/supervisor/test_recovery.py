"""Recovery of a run that has lost supervisor and guardian: what proves that nothing is left."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from runner.core.wire.codec import encode
from runner.core.wire.events import Ended
from runner.core.wire.paths import RunPaths
from runner.host.storage.run_folder import read_events
from runner.host.supervisor.recovery import recover_orphaned
from tests.golden.builders import plan


@pytest.mark.promise(2)
@pytest.mark.parametrize("has_owner", [False, True])
def test_an_end_is_verified_only_if_nothing_was_started(tmp_path: Path, *, has_owner: bool) -> None:
    """Whoever starts something is on record as the owner before."""
    order = replace(plan(1).nodes[0].order, workdir=str(tmp_path), run_id="run-recovered")
    folder = RunPaths(str(tmp_path), order.run_id, order.node)
    Path(folder.attempt_folder(0)).mkdir(parents=True)
    Path(folder.order).write_text(json.dumps(encode(order)))
    if has_owner:
        Path(folder.owner_file).write_text("{}")
    recover_orphaned(folder, order)
    (end,) = (event.body for event in read_events(folder) if isinstance(event.body, Ended))
    assert end.verified is not has_owner, end
