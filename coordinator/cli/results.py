"""What a finished run leaves: the global model twice, its scores, a summary with its device table, a report."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from coordinator.cli import audit_head
from coordinator.device_scores.distribution import scores_summary
from coordinator.exporting.inference_program import inference_program
from coordinator.history.history import History
from coordinator.language.source import names_language_model
from coordinator.local_devices.control_groups import CeilingReport
from coordinator.reporting.environment import environment
from coordinator.reporting.reading import subject_of
from coordinator.reporting.report import report
from coordinator.rounds.evaluators import AnyEvaluator
from coordinator.rounds.federation import Federation
from coordinator.rounds.global_model import write_atomically, write_final
from coordinator.rounds.metrics import summary_score
from coordinator.rounds.stages.checkpoints import best_summary
from coordinator.rounds.stages.differential_privacy import privacy_summary
from coordinator.rounds.stages.traffic_account import write_account
from coordinator.rounds.task_evaluation import TaskEvaluator
from coordinator.submodels.values import State
from edge.contracts.plan import read_order
from edge.runtimes import DEFAULT


def finish_run(
    federation: Federation,
    evaluator: AnyEvaluator,
    state: State,
    run_dir: Path,
    *,
    wall_s: float,
    ceilings: Mapping[str, CeilingReport] | None = None,
) -> dict[str, Any]:
    """Write the final files of a run and mark it finished; the values of ``summary.json``.

    Args:
        ceilings: of the local devices that have one, by device.
    """
    checkpoints = run_dir / "checkpoints"
    write_final(state, checkpoints / "final.safetensors")
    scores = federation.evaluate(state)
    final_file = _write_and_score_onnx(federation, evaluator, state, checkpoints)
    table = device_table(federation)
    rounds = [r for r in federation.ledger.rounds.all() if r.state == "committed"]
    evaluated = {label: {**score.values(), "examples": score.examples} for label, score in scores.items()}
    previous, config = _previous_wall_s(run_dir), federation.config
    summary = {
        **summary_score(scores["server"].values()),
        "rounds": federation.training_rounds,
        "devices": len(table),
        "levels": len({row["level"] for row in table}),
        "runtimes": dict(sorted(Counter(row["runtime"] for row in table).items())),
        "wall_s": round(previous or wall_s, 2),
        "torch_loaded_on_devices": any(row["torch_loaded"] for row in table),
        "over_budget": sum(row["over_budget"] for row in table),
        "bytes_up": sum(row["bytes_up"] for row in table),
        "bytes_down": sum(row["bytes_down"] for row in table),
        "run_dir": str(run_dir),
        "evaluation": {
            "batch": evaluator.batch,
            "order": "file",
            "norm": evaluator.norm,
            "models": evaluated,
            **final_file,
        },
        "exports": federation.artifacts.exports,
        "attempts": len(federation.ledger.rounds.all()),
        "committed_rounds": len(rounds),
        "device_table": table,
        "environment": environment(),
        **ceiling_summary(ceilings or {}),
        **privacy_summary(federation),
        **scores_summary([r.metrics for r in rounds]),
        **best_summary(config, [{**r.metrics, "round": r.round} for r in rounds], federation.training_rounds),
    }
    write_atomically(run_dir / "summary.json", json.dumps(summary, indent=2, sort_keys=True).encode())
    with _history(federation, run_dir) as history:
        page = report(subject_of(history, str(run_dir), summary=summary))
    write_atomically(run_dir / "report.html", page.encode())
    if federation.ledger.federation().state == "running":
        federation.ledger.move_federation("finished")
    # After the last entry of the run: the head is that of the whole log.
    summary[audit_head.KEY] = audit_head.head_values(federation.ledger, config.broker.identity)
    write_atomically(run_dir / "summary.json", json.dumps(summary, indent=2, sort_keys=True).encode())
    return summary


def _history(federation: Federation, run_dir: Path) -> History:
    address = federation.config.store.ledger
    return History(address or run_dir / "ledger.sqlite", federation.name if address else "", folder=run_dir)


def ceiling_summary(ceilings: Mapping[str, CeilingReport]) -> dict[str, Any]:
    """What ``summary.json`` says of ceilings: processes killed at a memory limit since the run was last started, in all
    (None where the kernel does not count them) and by device. Nothing without ceilings."""
    if not ceilings:
        return {}
    counts = [report.kills for report in ceilings.values()]
    return {
        "memory_kills": None if None in counts else sum(count or 0 for count in counts),
        "ceilings": {device: asdict(report) for device, report in sorted(ceilings.items())},
    }


def finished_summary(run_dir: Path) -> dict[str, Any] | None:
    """The summary of a finished run; None when some of what it left is gone and has to be written again."""
    left: tuple[str, ...] = ("summary.json", "report.html", "checkpoints/final.safetensors", "checkpoints/final.onnx")
    run_file = run_dir / "config.toml"
    if run_file.is_file() and names_language_model(run_file.read_text(encoding="utf-8")):
        left = left[:-1]
    if not all((run_dir / name).exists() for name in left):
        return None
    summary: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())
    return summary


def _previous_wall_s(run_dir: Path) -> float | None:
    """Wall time of a run that had finished before: resuming it again must not change what it reports."""
    path = run_dir / "summary.json"
    return float(json.loads(path.read_text())["wall_s"]) if path.exists() else None


def _write_and_score_onnx(
    federation: Federation, evaluator: AnyEvaluator, state: State, checkpoints: Path
) -> dict[str, Any]:
    """Write ``final.onnx`` and hold what it says by ONNX Runtime against torch; what ``summary.json`` says of it.

    Of classes: its accuracy, and whether all predictions are equal. Of a task: the largest difference, relative to the
    largest prediction; nothing of one that reads more than ``x`` for a prediction. Of a language model there is no such
    file.
    """
    import numpy as np

    from export.inference_model import run_inference_model, write_inference_model

    submodel = federation.method.eval_models(state)["server"]
    if submodel.program.has_base:
        return {}  # its factors belong to a base, and a model is made of both when it is deployed
    # Whatever the devices trained with, the model users deploy is made from the ONNX programs.
    program = inference_program(submodel, evaluator.norm)
    artifact = federation.artifacts.get(submodel.cut, program, DEFAULT)
    folder = checkpoints / "artifact"
    federation.artifacts.write_folder(artifact, folder)
    path = checkpoints / "final.onnx"
    write_inference_model(folder, artifact.manifest, submodel.tensors, path)
    if isinstance(evaluator, TaskEvaluator):
        expected = evaluator.predictions(submodel)
        got = run_inference_model(path, evaluator.inputs, evaluator.batch)
        scale = max(float(np.abs(expected).max(initial=0.0)), 1e-12)
        return {"onnx_max_error": float(np.abs(got - expected).max(initial=0.0)) / scale}
    from_onnx = run_inference_model(path, evaluator.inputs, evaluator.batch)
    predictions = from_onnx.argmax(1)
    agrees = bool(np.array_equal(predictions, evaluator.logits(submodel).argmax(1)))
    return {"onnx_accuracy": float((predictions == evaluator.labels).mean()), "onnx_predictions_equal": agrees}


def device_table(federation: Federation) -> list[dict[str, Any]]:
    """One row per device that ever reported: its budget, cut, predicted and measured peak, step time, bytes."""
    write_account(federation)
    ledger = federation.ledger
    rows: dict[str, dict[str, Any]] = {}
    for attempt in ledger.rounds.all():
        for update in ledger.updates.of_attempt(attempt.round, attempt.attempt):
            order, report = read_order(update.assignment.order), update.report
            row = rows.setdefault(
                report.device,
                {
                    "device": report.device,
                    "rounds": 0,
                    "step_ms": [],
                    "bytes_up": 0,
                    "bytes_down": 0,
                    "measured_peak_bytes": 0,
                    "over_budget": 0,
                    "torch_loaded": False,
                },
            )
            peak = report.trainer_peak_bytes + report.supervisor_peak_bytes
            row.update(
                level=update.assignment.level,
                form=update.assignment.form,
                threads=report.threads,
                budget_bytes=report.budget_bytes,
                predicted_peak_bytes=order.peak_bytes,
                measured_peak_bytes=max(row["measured_peak_bytes"], peak),
                rounds=row["rounds"] + 1,
                bytes_up=row["bytes_up"] + report.bytes_up,
                bytes_down=row["bytes_down"] + report.bytes_down,
                over_budget=row["over_budget"] + int(report.over_budget),
                torch_loaded=row["torch_loaded"] or report.torch_loaded,
                runtime=report.runtime,
            )
            if report.processor_s is not None:
                row["cpu_s"] = round(row.get("cpu_s", 0.0) + report.processor_s, 3)
            if report.energy_j is not None:
                row["joules"] = round(row.get("joules", 0.0) + report.energy_j, 1)
            if order.schedule.turns and order.schedule.turns[0].program != "stats":
                row["step_ms"].append(report.step_ms_p50)
    for part in ledger.traffic.all():
        if part.device in rows:
            rows[part.device].setdefault("traffic", {})[f"{part.direction} {part.scheme}"] = {
                "payload": part.payload_bytes,
                "wire": part.wire_bytes,
            }
    for device, (_, rejected, quarantined) in ledger.reliabilities.outcomes().items():
        if device in rows:
            rows[device] |= {"rejected": rejected, "quarantined": quarantined}
    for row in rows.values():
        times = sorted(row["step_ms"])
        row["step_ms"] = times[len(times) // 2] if times else 0.0
    return [rows[device] for device in sorted(rows)]
