"""What a simulation leaves: the global model, and ``summary.json`` with a run's keys."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coordinator.config.run_config import RunConfig
from coordinator.device_scores.distribution import scores_summary
from coordinator.reporting.environment import environment
from coordinator.rounds.global_model import write_atomically, write_final
from coordinator.rounds.metrics import summary_score
from coordinator.rounds.stages.checkpoints import best_summary
from coordinator.simulation.record import Record
from coordinator.submodels.values import State


def finish(
    run_dir: Path, config: RunConfig, state: State, record: Record, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Write the final files; the values of ``summary.json``.

    Args:
        settings: how it was computed (workers, torch's device); kept in the summary.
    """
    write_final(state, run_dir / "checkpoints" / "final.safetensors")
    models = record.rounds[-1]["evaluation"]
    trained = [entry for entry in record.rounds if entry["program"] == "train"]
    summary = {
        **summary_score(models["server"]),
        "rounds": len(trained),
        "devices": config.cohort.local_devices,
        "levels": len({name for entry in trained for name in entry["levels"]}),
        "wall_s": round(record.wall_s, 2),
        "simulated_s": sum(entry["simulated_s"] for entry in record.rounds),
        "bytes_up": sum(entry["bytes_up"] for entry in record.rounds),
        "bytes_down": sum(entry["bytes_down"] for entry in record.rounds),
        "refused": sum(entry["refused"] for entry in record.rounds),
        "run_dir": str(run_dir),
        "evaluation": {
            "batch": config.evaluation.batch,
            "order": "file",
            "norm": config.evaluation.norm,
            "models": models,
        },
        **scores_summary(record.rounds),
        **best_summary(config, record.rounds, len(trained)),
        "simulation": dict(settings),
        "environment": environment(),
        "device_table": [_row(device, row) for device, row in sorted(record.devices.items())],
    }
    write_atomically(run_dir / "summary.json", json.dumps(summary, indent=2, sort_keys=True).encode())
    return summary


def _row(device: str, totals: Mapping[str, Any]) -> dict[str, Any]:
    return {"device": device, **{key: value for key, value in totals.items() if key != "constants"}}


def finished_summary(run_dir: Path) -> dict[str, Any] | None:
    """The summary of a finished simulation; None when some of what it left is gone."""
    if not all((run_dir / name).exists() for name in ("summary.json", "checkpoints/final.safetensors")):
        return None
    summary: dict[str, Any] = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
    return summary
