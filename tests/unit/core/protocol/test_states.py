"""The life of a run on one host."""

from __future__ import annotations

from itertools import product

import pytest

from runner.core.protocol.states import TRANSITIONS, State

FOLLOWERS = {
    "starting": {"running", "stopping", "failed", "stuck"},
    "running": {"stopping", "succeeded", "failed", "stuck"},
    "stopping": {"succeeded", "failed", "stopped", "stuck"},
    "succeeded": set(),
    "failed": set(),
    "stopped": set(),
    "stuck": set(),
}


@pytest.mark.parametrize(
    ("before", "after"), list(product(State, State)), ids=lambda state: state.value
)
def test_only_these_moves_are_legal(before: State, after: State) -> None:
    """Each state may be followed by those of the table, and by no other, itself included."""
    assert (after in TRANSITIONS[before]) == (after.value in FOLLOWERS[before.value])


@pytest.mark.parametrize("state", list(State), ids=lambda state: state.value)
def test_terminal_states_are_the_ends(state: State) -> None:
    """A state is terminal exactly if nothing may follow."""
    assert state.is_terminal == (state.value in {"succeeded", "failed", "stopped", "stuck"})
