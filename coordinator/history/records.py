"""What a run was, as values: the run, its rounds, its devices, the work in a round, its events, its traffic.

No SQL here, and no I/O. Times are seconds since 1970, by the clock of the process that wrote them; None: not known, as
in rows of older releases, or not yet. Rounds count from 0, as in the ledger; pages for people add one.
"""

from __future__ import annotations

from typing import Any

import msgspec

from coordinator.ledger.records import AssignmentState, FederationState, RoundState


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run as a whole.

    Attributes:
        method, model: by their names in the run file.
        rounds_asked: rounds of training that the run file asks for.
        rounds_committed: rounds that are done, of training and after it (statistics, scores).
        attempts: at all rounds; more than rounds where some were repeated.
        devices: whose profile is in the run's snapshot.
        request: what was asked of its coordinator last: ``pause``, ``drain``, ``stop``, or nothing.
        config: the canonical run file, TOML.
        summary: ``summary.json`` of a finished run; empty before.
        last_event: number of the newest entry of the audit log; it grows whenever something of note happens.
    """

    name: str
    method: str
    model: str
    state: FederationState
    seed: int
    rounds_asked: int
    rounds_committed: int
    attempts: int
    devices: int
    cohort_size: int
    started_at: float
    ended_at: float | None
    request: str
    config: str
    summary: dict[str, Any]
    last_event: int


class Privacy(msgspec.Struct, frozen=True, kw_only=True):
    """What all rounds up to one have spent: (epsilon, delta)-differential privacy of each device's data."""

    epsilon: float
    delta: float


class RoundRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at one round.

    Attributes:
        why: of an abandoned attempt, in words.
        assigned: state of an assignment -> how many of the attempt are in it.
        reported: capacity level -> reports.
        counted: updates that the attempt sums, of whichever round.
        quarantined: updates of the attempt that no round may count.
        loss: mean training loss by examples; None before it is committed, or where it is no number.
        scores: evaluated model -> metric -> value; ``server`` is the global model, the others are capacity levels.
        bytes_up, bytes_down: as devices reported them: from them, and to them.
    """

    round: int
    attempt: int
    state: RoundState
    why: str
    assigned: dict[AssignmentState, int]
    reported: dict[str, int]
    counted: int
    quarantined: int
    planned_at: float | None
    published_at: float | None
    aggregating_at: float | None
    ended_at: float | None
    wall_s: float | None = None
    examples: int = 0
    loss: float | None = None
    scores: dict[str, dict[str, float]] = {}
    bytes_up: int = 0
    bytes_down: int = 0
    over_budget: int = 0
    privacy: Privacy | None = None


class AssignmentRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The work of one device in one attempt, and what became of it.

    Attributes:
        code, reason: why it was refused, rejected or expired.
        sent_at: when orders of the attempt were published.
        accepted_at: when the device took it.
        answered_at: when its report, refusal or rejection was written, or it was given up.
        trained_s: from its acceptance to its report, as the device measured it.
        cpu_s: processor time of its trainer; joules: of its board in that time, where something counts them.
        predicted_peak_bytes, measured_peak_bytes: of supervisor and trainer together; measured 0: no report.
        budget_bytes: as the device reported it; 0: no limit, or no report.
        counted_in: the round that sums its update; None: none does.
        weight: of the update in that sum.
        quarantine: the code that it is kept out for; empty: it is not.
        evidence: for that.
    """

    assignment_id: str
    device: str
    round: int
    attempt: int
    level: str
    form: str
    state: AssignmentState
    code: str
    reason: str
    planned_at: float | None
    sent_at: float | None
    accepted_at: float | None
    answered_at: float | None
    predicted_peak_bytes: int
    measured_peak_bytes: int = 0
    budget_bytes: int = 0
    is_over_budget: bool = False
    trained_s: float | None = None
    cpu_s: float | None = None
    joules: float | None = None
    num_examples: int = 0
    steps: int = 0
    step_ms: float | None = None
    loss: float | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    temperature_c: float | None = None
    battery_percent: float | None = None
    runtime: str = ""
    counted_in: int | None = None
    weight: float | None = None
    quarantine: str = ""
    evidence: dict[str, Any] = {}
    round_state: RoundState = "planned"


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """How many assignments of a device ended in which state; ``waiting`` are open or accepted."""

    assigned: int = 0
    reported: int = 0
    refused: int = 0
    rejected: int = 0
    expired: int = 0
    waiting: int = 0
    quarantined: int = 0


class DeviceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A device as the ledger knows it.

    Attributes:
        board: what the machine is, in its own words.
        joined_at: when its profile was taken into the snapshot.
        level, form, round, attempt, state, code, reason: of its newest assignment; round -1: it never had one.
        predicted_peak_bytes, measured_peak_bytes: of that step, both processes; measured is the largest so far, 0:
            none yet.
        predicted_step_ms: None where nothing is known of the device's speed.
        step_ms: median of a step at its newest report for that step; None: none yet.
        score: reliability, 1 unless something was held against it.
        barred_until: first round it may take part in again; -1: it is not barred.
        quarantine: code of its newest update in quarantine; empty: none is.
        bytes_up, bytes_down: payload, as the coordinator counted it, up to the last committed round.
    """

    device: str
    board: str
    runtimes: tuple[str, ...]
    ram_bytes: int
    budget_bytes: int
    joined_at: float | None
    level: str
    form: str
    round: int
    attempt: int
    state: str
    code: str
    reason: str
    predicted_peak_bytes: int
    measured_peak_bytes: int
    predicted_step_ms: float | None
    step_ms: float | None
    counts: Counts
    score: float = 1.0
    barred_until: int = -1
    quarantine: str = ""
    bytes_up: int = 0
    bytes_down: int = 0


class Presence(msgspec.Struct, frozen=True, kw_only=True):
    """A device as the ledger's coordinators last heard it; only runs with several coordinators keep this there.

    Attributes:
        heartbeat: the body of its last one, JSON values; empty: none yet.
        away_reason: of its goodbye or last will; empty while it is there.
    """

    device: str
    heard_at: float
    heartbeat: dict[str, Any]
    away_reason: str


class LedgerEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of the run's audit log."""

    number: int
    at: float
    actor: str
    action: str
    subject: str
    details: dict[str, Any]


class TrafficTotal(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of all devices, or of one, one way and by one scheme, up to the last committed round.

    Attributes:
        payload_bytes: of weights, artifacts and updates.
        wire_bytes: of the messages or requests that carried them, headers and repeats included.
    """

    direction: str
    scheme: str
    payload_bytes: int
    wire_bytes: int


class LayerLevel(msgspec.Struct, frozen=True, kw_only=True):
    """How devices of one capacity level hold a layer, and what they did for it.

    Attributes:
        holds: ``whole``, ``frozen``, ``rank 64``, ``128 of its outputs`` and the like.
        updates: counted updates that trained it.
        last_round: the last committed round that counts one; -1: none does.
    """

    holds: str
    updates: int
    devices: int
    last_round: int


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """One layer of the model.

    Attributes:
        path: of the module; of a bare parameter its name.
        tensors: trained tensors of the layer that devices sent.
        updates, devices, last_round: over all levels, as :class:`LayerLevel`.
        levels: capacity level -> the same for it.
    """

    path: str
    tensors: tuple[str, ...]
    updates: int
    devices: int
    last_round: int
    levels: dict[str, LayerLevel]


class TrainedInRound(msgspec.Struct, frozen=True, kw_only=True):
    """That ``updates`` updates of one capacity level, counted in a round, trained the layers at these positions."""

    round: int
    level: str
    updates: int
    layers: tuple[int, ...]


class ModelMap(msgspec.Struct, frozen=True, kw_only=True):
    """The model as a map: each layer, when it was trained, by whom.

    Attributes:
        layers: in the order in which devices were first sent them.
        rounds: what each committed round trained.
        through_round: the last committed round that is in it; -1: none.
        is_complete: whether that is the last there is.
    """

    layers: tuple[Layer, ...]
    rounds: tuple[TrainedInRound, ...]
    through_round: int
    is_complete: bool


class LayerDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device that trained a layer: how many counted updates of it did, and the last round that counts one."""

    device: str
    updates: int
    last_round: int
