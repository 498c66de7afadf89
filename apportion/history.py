"""What a run or a simulation left: its rounds, its devices, its summary and the final model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apportion.rows import Rows
from coordinator.rounds.global_model import read_final
from edge.contracts.errors import ConfigError, LedgerError

if TYPE_CHECKING:
    import torch

    from edge.contracts.inference import InferenceManifest

_SHOWN = ("round", "accuracy", "loss", "train_loss", "reports", "examples", "bytes_down", "bytes_up", "wall_s")


class History:
    """A run's directory, read when it is asked.

    Attributes:
        run_dir: the directory.
        rounds: one row for each committed round, as in ``metrics.jsonl``, with the ``accuracy`` and ``loss`` of the
            global model (None where it was not evaluated).
        summary: the values of ``summary.json``; empty for a run that has not ended.
    """

    def __init__(self, run_dir: Path, *, is_own: bool = False) -> None:
        self.run_dir = run_dir
        self._is_own = is_own
        rounds = _rounds(run_dir)
        self.rounds = Rows(rounds, _shown(rounds))
        self.summary: dict[str, Any] = _json(run_dir / "summary.json")

    @property
    def accuracy(self) -> float:
        """Of the final model on the held-out examples.

        Raises:
            LedgerError: the run has not ended.
        """
        if "accuracy" not in self.summary and "metric" in self.summary:
            metric = self.summary["metric"]
            raise LedgerError(f"{self.run_dir}: its task has no accuracy; summary['score'] is its {metric}")
        if "accuracy" not in self.summary:
            raise LedgerError(
                f"{self.run_dir}: the run has not ended; go on with apportion.resume({str(self.run_dir)!r})"
            )
        return float(self.summary["accuracy"])

    @property
    def devices(self) -> Rows:
        """One row for each device that took part: level, predicted and measured peak, step time, bytes."""
        table = self.summary.get("device_table", ())
        return Rows(table, tuple(dict.fromkeys(("device", *(name for row in table for name in row)))))

    @property
    def device_scores(self) -> dict[str, Any]:
        """How the final model does on the devices' own held-out shares: ``docs/evaluation.md`` has its keys.

        Raises:
            LedgerError: no device has scored: the run file has no ``[evaluation] devices``, or the run has not ended.
        """
        if "device_evaluation" not in self.summary:
            raise LedgerError(
                f"{self.run_dir}: no device has scored the final model; run to its end with $.evaluation.devices, such "
                "as 0.2"
            )
        return dict(self.summary["device_evaluation"])

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The final model: tensors by name, copies, for ``load_state_dict`` of the run's own module.

        Raises:
            LedgerError: the run has not ended; ArtifactCorrupt: its file is damaged.
        """
        import numpy as np
        import torch

        path = self.run_dir / "checkpoints" / "final.safetensors"
        return {name: torch.from_numpy(np.array(value)) for name, value in read_final(path).items()}

    def deploy(
        self,
        out: str | Path,
        *,
        format: str = "",
        int8: bool = False,
        max_drop: float = 0.02,
        allow_code: bool = False,
    ) -> InferenceManifest:
        """Write the final model for inference into the new folder ``out``; what was measured of it.

        On a device :class:`apportion.Predictor` reads the folder.

        Args:
            format: suffix of the model's file; onnx unless given.
            int8: int8 weights and activations.
            max_drop: how much lower the accuracy in int8 may be than torch's on the held-out examples.
            allow_code: import what a run that was not begun here names; this program's own may.

        Raises:
            ConfigError: a folder that is not empty; LedgerError: the run has not ended; ParityError: the file is too
                far from torch.
        """
        from coordinator.cli.deploy import deployed

        allow = allow_code or self._is_own
        return deployed(self.run_dir, Path(out), format=format, int8=int8, max_drop=max_drop, allow_code=allow)

    def plot(self) -> Any:
        """A matplotlib figure: the accuracy of each evaluated model, and the devices' training loss, over the rounds.

        Raises:
            ConfigError: matplotlib is not installed.
        """
        from apportion.plot import plot_rounds

        return plot_rounds(self.rounds, self.run_dir.name)

    def __repr__(self) -> str:
        metric = self.summary.get("metric", "accuracy")
        value = self.summary.get("score", self.summary.get("accuracy"))
        score = ", not ended" if value is None else f", {metric} {value:.4f}"
        return f"History({str(self.run_dir)!r}: {len(self.rounds)} rounds{score})"


def load(run_dir: str | Path) -> History:
    """The history of the run or simulation in ``run_dir``, whatever wrote it.

    Raises:
        ConfigError: there is none.
    """
    folder = Path(run_dir)
    if not (folder / "config.toml").is_file():
        raise ConfigError([f"run_dir: {folder} holds no run (no config.toml in it); give the directory of a run"])
    return History(folder)


def _rounds(run_dir: Path) -> list[dict[str, Any]]:
    """Each committed round once, in order: a round that was written twice has the figures of the last time."""
    path = run_dir / "metrics.jsonl"
    found: dict[tuple[int, str], dict[str, Any]] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        entry = _parsed(line)
        if entry.get("event") != "round":
            continue
        found[entry["round"], entry["program"]] = round_row(entry)
    return [row for _, row in sorted(found.items(), key=lambda item: item[0][0])]


def _shown(rounds: list[dict[str, Any]]) -> tuple[str, ...]:
    """Columns that a table of ``rounds`` shows: a task's metrics in place of accuracy."""
    scored: dict[str, float] = next(
        (row["evaluation"]["server"] for row in rounds if "server" in row.get("evaluation", {})), {}
    )
    metrics = tuple(name for name in scored if name != "loss") or ("accuracy",)
    return ("round", *metrics, *(name for name in _SHOWN if name not in ("round", "accuracy")))


def round_row(entry: Mapping[str, Any]) -> dict[str, Any]:
    """What ``metrics.jsonl`` says of a round as a row: counted from 1, with the global model's metrics and loss."""
    server = entry.get("evaluation", {}).get("server", {})
    known = server or {"accuracy": None, "loss": None}
    return {**known, **entry, "round": entry["round"] + 1}


def _parsed(line: str) -> dict[str, Any]:
    """A line of metrics; nothing of one that a kill cut off."""
    try:
        entry = json.loads(line)
    except ValueError:
        return {}
    return entry if isinstance(entry, dict) else {}


def _json(path: Path) -> dict[str, Any]:
    return _parsed(path.read_text(encoding="utf-8")) if path.is_file() else {}
