"""The command by which a run goes on without the hosts that it lost."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from runner.control.record.run_store import RunStore
from runner.core.model.run_info import PastAttempt
from runner.core.outcome.verdict import Verdict
from tests.golden.builders import RUN_ID, plan

PAST = (PastAttempt(0, ("a", "x"), "lost x", 20.0, ("x",)),)


@pytest.mark.parametrize(
    ("cluster", "more", "lost", "words"),
    [
        ({}, {}, ("b",), "'cluster.exclude=[b,x]'"),
        ({"exclude": ["gpu[7-8]"]}, {}, ("b",), "'cluster.exclude=[gpu[7-8],b,x]'"),
        ({"master": "a"}, {}, ("a",), "'cluster.exclude=[a,x]' cluster.master=null"),
        ({"exclude": "${x}"}, {}, ("b",), ""),
        ({}, {"task": {"nnodes": 2}}, ("b",), ""),
        ({}, {}, ("a", "b"), ""),
    ],
)
def test_a_run_is_repeated_without_what_it_lost(
    tmp_path: Path,
    cluster: dict[str, object],
    more: dict[str, object],
    lost: tuple[str, ...],
    words: str,
) -> None:
    """In this attempt and before, and what was excluded already; if that can be known to do."""
    usual: dict[str, object] = {"exclude": [], "master": None, "scheduler": "direct"}
    config = {"task": {"nnodes": None}, **more}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({**config, "cluster": usual | cluster}))
    verdict = Verdict("lost", 4, 65.0, unverified=lost, past_attempts=PAST)
    command = RunStore(tmp_path).rerun_without_lost(plan(1, 1), verdict)
    assert command == (words and f"runner rerun={RUN_ID} {words}")
