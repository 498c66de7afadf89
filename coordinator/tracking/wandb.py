"""Weights & Biases: offline files, which ``wandb sync FOLDER`` sends if its user wants it. No request is made here."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

from coordinator.tracking.events import DeviceReported, RoundCommitted, RunEnded, RunStarted
from coordinator.tracking.figures import round_figures
from coordinator.tracking.tracker import Place, Tracker

STEP = "step"
"""The metric that the curves are drawn over: the round, from 1."""


class WeightsAndBiases(Tracker):
    """Writes below ``wandb-dir``, or ``wandb`` in the run's directory. A resumed run is a further file of the same id,
    for ``wandb sync --append``.
    """

    @classmethod
    def require(cls) -> None:
        """The package, which reads when it is imported whether it may report errors to its makers."""
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb  # noqa: F401

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._run: Any = None
        given = place.config.wandb_dir
        self._folder = Path(given) if given else place.run_dir

    def run_started(self, event: RunStarted) -> None:
        """Open the file."""
        import wandb

        run_id = self.place.remembered
        if not run_id:
            # Two runs of a folder's name are different runs.
            text = f"{event.federation} {event.run_dir} {event.at_s}"
            run_id = hashlib.sha256(text.encode()).hexdigest()[:16]
            self.place.remember(run_id)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            mode="offline",
            id=run_id,
            resume="allow",
            project=self.place.experiment,
            name=self.place.name,
            dir=str(self._folder),
            config=dict(event.settings),
            reinit="create_new",
            settings=wandb.Settings(
                silent=True,
                console="off",
                save_code=False,
                disable_git=True,
                disable_code=True,
                x_disable_meta=True,
                x_disable_stats=True,
                x_disable_machine_info=True,
            ),
        )
        self._run.define_metric(STEP)
        self._run.define_metric("*", step_metric=STEP)

    def device_reported(self, event: DeviceReported) -> None:
        """Its figures."""
        self._run.log(
            {f"round_device/{event.device}/{key}": v for key, v in event.figures.items()} | {STEP: event.step}
        )

    def round_committed(self, event: RoundCommitted) -> None:
        """Its figures."""
        self._run.log(round_figures(event.entry) | {STEP: event.step})

    def run_ended(self, event: RunEnded) -> None:
        """What the run came to, and its files: copies beside the curves."""
        for key, value in event.summary.items():
            if isinstance(value, int | float | str):
                self._run.summary[key] = value
        for path in event.files:
            copy = Path(self._run.dir) / path.name
            shutil.copyfile(path, copy)
            self._run.save(str(copy), base_path=self._run.dir, policy="end")
        self._run.finish(exit_code=0 if event.outcome == "finished" else 1)
        self._run = None

    def close(self) -> None:
        """Close the file of a run whose end was not told."""
        if self._run is not None:
            self._run.finish(exit_code=1)
