"""What the ledger gives back, and which state may follow which. No SQL here, and no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

import msgspec

from edge.contracts.errors import LedgerError
from edge.contracts.report import TrainReport

RecordT = TypeVar("RecordT", bound=msgspec.Struct)

FederationState = Literal["new", "running", "finished"]
RoundState = Literal["planned", "published", "collecting", "aggregating", "committed", "abandoned"]
AssignmentState = Literal["open", "accepted", "refused", "reported", "expired", "rejected"]

FEDERATION_MOVES: Mapping[str, frozenset[str]] = {
    "new": frozenset({"running"}),
    "running": frozenset({"finished"}),
    "finished": frozenset(),
}

ROUND_MOVES: Mapping[str, frozenset[str]] = {
    "planned": frozenset({"published", "abandoned"}),
    "published": frozenset({"collecting", "abandoned"}),
    "collecting": frozenset({"aggregating", "abandoned"}),
    # Participants are written by then, so an interrupted aggregation is repeated with the same ones, never given up.
    "aggregating": frozenset({"committed"}),
    "committed": frozenset(),
    "abandoned": frozenset(),
}
"""``abandoned``: too few reports at the deadline; the same round follows with attempt + 1."""

ASSIGNMENT_MOVES: Mapping[str, frozenset[str]] = {
    "open": frozenset({"accepted", "refused", "reported", "expired", "rejected"}),
    "accepted": frozenset({"refused", "reported", "expired", "rejected"}),
    "refused": frozenset(),
    "reported": frozenset(),
    "expired": frozenset(),
    "rejected": frozenset(),
}
"""``refused`` by the device, ``rejected`` by the coordinator (its update), ``expired`` at the deadline: all final."""


class Federation(msgspec.Struct, frozen=True, kw_only=True):
    """The run a ledger belongs to. ``config`` is its canonical TOML, ``config_digest`` the SHA-256 of that text.

    Attributes:
        nonce: drawn when the run was begun; in every id and key that is derived for it. Empty: begun by a release
            without.
    """

    id: str
    config: str
    config_digest: str
    seed: int
    created_at: float
    state: FederationState = "new"
    nonce: str = ""


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at one round.

    Attributes:
        deadline_s: seconds left when it was last written; the clock runs in the process, monotonic.
        participants: device ids whose updates are summed, sorted; written before aggregation.
        model_digest: blob of the model after this round; empty until committed.
        metrics: evaluation and counters of a committed round, by name.
    """

    round: int
    attempt: int
    state: RoundState
    deadline_s: float
    participants: tuple[str, ...] = ()
    model_digest: str = ""
    metrics: dict[str, Any] = {}


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """The work of one device in one attempt at one round.

    Attributes:
        level: name of the rung of the method's capacity ladder.
        cut: plain JSON values of the LayerCut records (``coordinator.submodels.record.cut_to_json``).
        order: bytes of the WorkOrder as sent, its deadline apart.
        code, reason: why it was refused, rejected or expired; empty otherwise.
        form: of the step, by its name.
    """

    assignment_id: str
    round: int
    attempt: int
    device: str
    level: str
    cut: dict[str, Any]
    artifact_digest: str
    weights_digest: str
    order: bytes
    state: AssignmentState = "open"
    code: str = ""
    reason: str = ""
    form: str = "plain"


class RecordedUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """An update that counts: its assignment, the blob that holds its tensors, and what the device reported."""

    assignment: Assignment
    update_digest: str
    report: TrainReport


class Contribution(msgspec.Struct, frozen=True, kw_only=True):
    """That an update is counted, and with which weight; an assignment has at most one in a whole run."""

    assignment_id: str
    weight: float


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """What a device measured for one exported step, beside what was predicted for it.

    Attributes:
        predicted_peak_bytes, measured_peak_bytes: supervisor and trainer together; measured is the largest so far.
        step_ms: median of the latest assignment.
    """

    device: str
    export_key: str
    batch: int
    predicted_peak_bytes: int
    measured_peak_bytes: int
    step_ms: float


SETBACK_CODES = frozenset({"out-of-memory", "trainer-crashed"})
"""Refusals after which a device is not given the same artifact again."""

OVER_BUDGET = "over-budget"
"""The code of a setback that was reported with an update: the work was done, in more memory than the device has."""


class Setback(msgspec.Struct, frozen=True, kw_only=True):
    """An assignment that took more memory than its device has, or that its trainer did not survive.

    Attributes:
        code: of :data:`SETBACK_CODES`, or :data:`OVER_BUDGET`.
        peak_bytes: of both processes, as measured; 0 when it is not known.
        limit_bytes: what the device has for both; 0 when it is not known.
    """

    assignment_id: str
    device: str
    round: int
    level: str
    artifact_digest: str
    code: str
    peak_bytes: int
    limit_bytes: int


def check_move(moves: Mapping[str, frozenset[str]], now: str, to: str, *, what: str) -> None:
    """Check that ``now`` may become ``to``.

    Raises:
        LedgerError: it may not; the message lists what it may become.
    """
    if to not in moves[now]:
        allowed = ", ".join(sorted(moves[now])) or "nothing"
        raise LedgerError(f"{what} is {now} and cannot become {to}; {now} may become {allowed}")


def from_row(kind: type[RecordT], row: Sequence[Any]) -> RecordT:
    """The record in a row that has its fields, in their order."""
    return kind(**dict(zip(kind.__struct_fields__, row, strict=True)))


def round_from_row(row: Sequence[Any]) -> Round:
    """The round in a row of the table's columns, in the order of its fields."""
    return from_row(Round, (*row[:4], tuple(msgspec.json.decode(row[4])), row[5], msgspec.json.decode(row[6])))


def assignment_from_row(row: Sequence[Any]) -> Assignment:
    """The assignment in a row of the table's columns, in the order of its fields."""
    return from_row(Assignment, (*row[:5], msgspec.json.decode(row[5]), *row[6:]))
