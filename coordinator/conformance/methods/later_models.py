"""A method whose ``synchronous_only`` is empty: its updates may be added to a later model, exactly."""

from __future__ import annotations

import numpy as np

from coordinator.conformance.findings import NotApplicable, expect
from coordinator.conformance.methods.subject import Subject, trained_updates
from coordinator.methods.method import Method, MovesProducts
from coordinator.submodels.values import State

LATER = 3


def _buffered(subject: Subject) -> tuple[Method, State]:
    method, state = subject.built()
    if method.synchronous_only:
        raise NotApplicable(f"its rounds are synchronous: {method.synchronous_only}")
    return method, state


def _expect_same(one: State, other: State, what: str) -> None:
    for mine, theirs in ((one.tensors, other.tensors), (one.extra, other.extra)):
        odd = sorted({*mine} ^ {*theirs}) or [n for n in mine if not np.array_equal(mine[n], theirs[n])]
        expect(not odd, f"{what}: {', '.join(odd[:5])} differ; say why in synchronous_only if that has to be so")


def fresh_updates_are_rebased_exactly(subject: Subject) -> str:
    """A buffer of the whole cohort without staleness is the synchronous round; of a method that moves products, what
    training changes of that round, for the round loses what ranks cut away, and the buffer keeps it."""
    method, state = _buffered(subject)
    if isinstance(method, MovesProducts):
        return _fresh_products_move_as_far(method, state)
    synchronous = method.refresh(method.aggregate(state, trained_updates(method, state)))
    buffered = method.refresh(method.aggregate(state, trained_updates(method, state, today=state)))
    _expect_same(synchronous, buffered, "a buffer of the whole cohort is not the synchronous round")
    return "the synchronous round"


def _fresh_products_move_as_far(method: Method, state: State) -> str:
    buffered = method.refresh(method.aggregate(state, trained_updates(method, state, today=state)))
    synchronous = method.refresh(method.aggregate(state, trained_updates(method, state)))
    untrained = method.refresh(method.aggregate(state, trained_updates(method, state, is_trained=False)))
    for name, value in buffered.tensors.items():
        step, expected = value - state.tensors[name], synchronous.tensors[name] - untrained.tensors[name]
        expect(np.allclose(step, expected, rtol=0, atol=1e-5), f"{name} moves by another step than in a round")
    return "the step of the synchronous round"


def nothing_learnt_changes_nothing(subject: Subject) -> str:
    """An update that moved nothing leaves a later model as it is; a decomposition or a new mask would not."""
    method, state = _buffered(subject)
    later = state
    for _ in range(LATER):
        later = method.refresh(method.aggregate(later, trained_updates(method, later)))
    after = method.refresh(method.aggregate(later, trained_updates(method, state, today=later, weight=0.0)))
    _expect_same(later, after, f"an update that moved nothing moves the model of {LATER} rounds later")
    return f"{LATER} rounds later"


def old_updates_move_as_far(subject: Subject) -> str:
    """A late update moves a later model as far as it moved its own, within 1e-5."""
    method, state = _buffered(subject)
    once = method.refresh(method.aggregate(state, trained_updates(method, state, today=state)))
    twice = method.refresh(method.aggregate(once, trained_updates(method, state, today=once)))
    for name, value in twice.tensors.items():
        step, before = (value - once.tensors[name]), (once.tensors[name] - state.tensors[name])
        expect(np.allclose(step, before, rtol=0, atol=1e-5), f"{name} moves by another step than one round before")
    return "one round later"
