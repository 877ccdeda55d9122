"""States of a run on one host."""

from __future__ import annotations

from enum import Enum
from itertools import product

import pytest

from runner.core.protocol.states import (
    ATTEMPT_TRANSITIONS,
    NODE_TRANSITIONS,
    TRANSITIONS,
    AttemptState,
    NodeState,
    State,
)

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


@pytest.mark.parametrize("table", [NODE_TRANSITIONS, ATTEMPT_TRANSITIONS], ids=["node", "attempt"])
def test_every_state_has_a_row_and_can_be_reached(table: dict[Enum, frozenset[Enum]]) -> None:
    """From the first one, which is "starting"."""
    states = list(type(next(iter(table))))
    assert set(table) == set(states)
    reached = {states[0]}
    while new := {after for before in reached for after in table[before]} - reached:
        reached |= new
    assert reached == set(states)


def test_an_end_of_a_node_is_final_but_for_a_rejoin() -> None:
    """A late message of a node does not revive it."""
    assert NODE_TRANSITIONS[NodeState.COMPLETE] == {NodeState.STARTING}
    assert not any(ATTEMPT_TRANSITIONS[state] for state in (AttemptState.LEFT, AttemptState.ENDED))
