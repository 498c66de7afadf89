"""What a run writes for programs to read: a line of ``metrics.jsonl``, ``summary.json``, a line of ``--json``.

These structs say what is in the files; ``apportion schema`` publishes them as JSON Schema, and reports read through
them. Keys are added, never reused. A number that has no JSON form (a loss that diverged) is null.
"""

from __future__ import annotations

from typing import Any

import msgspec


class RoundLine(msgspec.Struct, frozen=True, kw_only=True):
    """``{"event": "round"}``: a committed round.

    Attributes:
        event: ``round``; lines with another event (``quarantine``, ``paused``, ``continued``, ``stopped``) have keys
            of their own.
        at_s: seconds since the coordinator's process began.
        round, attempt: from 0; rounds after those of training carry the statistics or the scores.
        program: what devices ran: ``train``, ``stats`` or ``eval``.
        reports, examples: updates that were counted, and the examples they stand for.
        train_loss: mean over the examples.
        bytes_up, bytes_down: payload from devices and to them.
        over_budget: reports of devices that took more memory than their owner gave.
        torch_loaded: whether any device had torch in memory.
        runtimes, forms: reports by runtime, and by form of the step.
        wall_s: from plan to commit.
        cpu_s: processor time of the devices' trainings, of those that say it.
        joules, joules_reports: of the boards that count them, and how many reports had them.
        evaluation: evaluated model -> metric -> value; ``server`` is the global model, the others capacity levels.
        effective_rank: layer -> effective rank, where the run asks for spectra.
        layer_forms: weight -> form -> devices, of masked layers.
        staleness: versions that updates were old -> how many.
        privacy: epsilon, delta, cohort, population and whether it protects, so far.
        device_evaluation: scores on the devices' own held-out shares (docs/evaluation.md).
        policy_refusals: device -> the rule of its owner that refused.
        clusters: tag -> scores of that cluster's model.
        levels, refused, simulated_s, density, personal: of a simulation: reports by level, devices that took no part,
            seconds by the device model, kept share of the weights, accuracy of the devices' own models.
    """

    event: str
    at_s: float
    round: int
    attempt: int
    program: str
    reports: int
    examples: int
    train_loss: float | None
    bytes_up: int
    bytes_down: int
    over_budget: int
    wall_s: float
    cpu_s: float | None = None
    joules: float | None = None
    joules_reports: int = 0
    torch_loaded: bool = False
    runtimes: dict[str, int] = {}
    forms: dict[str, int] = {}
    evaluation: dict[str, dict[str, float | None]] = {}
    effective_rank: dict[str, float] = {}
    layer_forms: dict[str, dict[str, str]] = {}
    staleness: dict[str, int] = {}
    privacy: dict[str, Any] = {}
    device_evaluation: dict[str, Any] = {}
    policy_refusals: dict[str, str] = {}
    clusters: dict[str, dict[str, float]] = {}
    levels: dict[str, int] = {}
    refused: int = 0
    simulated_s: float = 0.0
    density: float | None = None
    personal: dict[str, Any] = {}


class DeviceRow(msgspec.Struct, frozen=True, kw_only=True):
    """``device_table[]``: a device that reported at least once.

    Attributes:
        rounds: reports, over all attempts.
        level, form, threads, runtime: of its last work.
        budget_bytes: what its owner gave both processes; 0: no limit.
        predicted_peak_bytes, measured_peak_bytes: memory of both processes; the measured one is the largest.
        step_ms: median over its reports of each report's median.
        bytes_up, bytes_down: payload.
        cpu_s, joules: processor time of its trainings, and energy where its board counts it; null: not said.
        over_budget: reports above the budget.
        traffic: ``up mqtt`` and the like -> payload and bytes on the wire.
        rejected, quarantined: updates that were refused, or set aside.
        examples, simulated_s: of a simulated device, on which nothing is measured: its own examples, and the seconds
            by the device model.
    """

    device: str
    rounds: int
    level: str
    bytes_up: int
    bytes_down: int
    budget_bytes: int = 0
    predicted_peak_bytes: int = 0
    measured_peak_bytes: int = 0
    step_ms: float = 0.0
    cpu_s: float | None = None
    joules: float | None = None
    over_budget: int = 0
    form: str = "plain"
    threads: int = 0
    runtime: str = ""
    torch_loaded: bool = False
    traffic: dict[str, dict[str, int]] = {}
    rejected: int = 0
    quarantined: int = 0
    examples: int = 0
    simulated_s: float = 0.0


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """``evaluation``: how the final model was scored.

    Attributes:
        batch, order, norm: of the held-out examples, and which statistics batch norm used.
        models: evaluated model -> metric -> value, and ``examples``.
        onnx_accuracy, onnx_predictions_equal, onnx_max_error: of ``final.onnx`` beside ``final.safetensors``.
    """

    batch: int
    order: str
    norm: str
    models: dict[str, dict[str, float | None]]
    onnx_accuracy: float | None = None
    onnx_predictions_equal: bool | None = None
    onnx_max_error: float | None = None


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """``summary.json``: what a run or a simulation came to.

    Attributes:
        accuracy: of the final model on held-out examples; absent where the task has none.
        metric, score: of a task with a metric of its own.
        rounds, devices, levels: rounds of training, devices that reported, capacity levels among them.
        runtimes: devices by runtime.
        wall_s: from the start to the end.
        over_budget: reports above a budget.
        bytes_up, bytes_down: payload of all devices.
        exports, attempts, committed_rounds: artifacts exported, tries at rounds, rounds done.
        device_table: a row for each device.
        memory_kills, ceilings: processes that the kernel ended at a memory limit, in all and by device.
        privacy: what was asked and spent.
        device_evaluation: the last scores on the devices' own held-out shares.
        best, stopped_early: the best model kept; whether training ended before its last round.
        audit_log: the head of the log after its last entry.
        environment: what the coordinator ran on and with: releases, processor.
        simulated_s, density, personal, refused, simulation: of a simulation; the last how it was computed.
    """

    accuracy: float | None = None
    metric: str = "accuracy"
    score: float | None = None
    rounds: int
    devices: int
    levels: int
    runtimes: dict[str, int] = {}
    wall_s: float
    over_budget: int = 0
    bytes_up: int
    bytes_down: int
    run_dir: str
    evaluation: Evaluation
    device_table: list[DeviceRow]
    torch_loaded_on_devices: bool = False
    exports: int = 0
    attempts: int = 0
    committed_rounds: int = 0
    memory_kills: int | None = None
    ceilings: dict[str, Any] = {}
    privacy: dict[str, Any] = {}
    device_evaluation: dict[str, Any] = {}
    best: dict[str, Any] = {}
    stopped_early: bool = False
    audit_log: dict[str, Any] = {}
    simulated_s: float = 0.0
    density: float | None = None
    personal: dict[str, Any] = {}
    refused: int = 0
    simulation: dict[str, Any] = {}
    environment: dict[str, str] = {}


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """``error``: which one (docs/errors.md), what happened, what to do."""

    code: str
    message: str
    hint: str


class ResultLine(msgspec.Struct, frozen=True, kw_only=True):
    """The one line of ``--json``; a verb's own values stand beside these.

    Attributes:
        schema: ``apportion.VERB/1``.
        ok: whether the job did what was asked.
        error: where it did not.
    """

    schema: str
    ok: bool
    error: Failure | None = None
