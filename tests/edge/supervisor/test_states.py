"""The state table: what it allows, and that what it does not allow changes nothing."""

from __future__ import annotations

from itertools import product
from typing import get_args

import pytest

from edge.contracts.messages import AgentState
from edge.supervisor.states import TABLE, IllegalMove, Move, StateMachine


def at(state: str) -> StateMachine:
    paths: dict[str, tuple[Move, ...]] = {
        "idle": (),
        "fetching": ("order",),
        "waiting": ("order", "fetched"),
        "training": ("order", "fetched", "begin"),
        "uploading": ("restored",),
        "stopping": ("stop",),
    }
    machine = StateMachine()
    for move in paths[state]:
        machine.move(move)
    assert machine.state == state
    return machine


@pytest.mark.parametrize(("state", "move"), list(product(get_args(AgentState), get_args(Move))))
def test_states_move_is_the_tables_or_raises_and_changes_nothing(state: AgentState, move: Move) -> None:
    machine = at(state)
    if (state, move) in TABLE:
        assert machine.move(move) == machine.state == TABLE[state, move]
    else:
        with pytest.raises(IllegalMove, match=f"'{state}'.*'{move}'"):
            machine.move(move)
        assert machine.state == state


def test_states_every_state_but_stopping_can_stop() -> None:
    assert {s for s, m in TABLE if m == "stop"} == set(get_args(AgentState)) - {"stopping"}
