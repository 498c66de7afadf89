"""TensorBoard: event files, a curve for every figure, by its name; ``tensorboard --logdir FOLDER`` shows them."""

from __future__ import annotations

import logging
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from coordinator.tracking.events import DeviceReported, RoundCommitted, RunEnded, RunStarted
from coordinator.tracking.figures import round_figures
from coordinator.tracking.tracker import Place, Tracker

FOLDER = "tensorboard"


class TensorBoard(Tracker):
    """Writes to ``tensorboard-dir``/name of the run, or to ``tensorboard`` in the run's directory."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        given = place.config.tensorboard_dir
        self._folder = Path(given) / place.name if given else place.run_dir / FOLDER
        self._writer: SummaryWriter | None = None
        logging.getLogger("tensorboard").setLevel(logging.ERROR)

    def run_started(self, event: RunStarted) -> None:
        """A new event file; of a run that was killed, what follows the last committed round counts no more."""
        self._writer = SummaryWriter(str(self._folder), purge_step=event.done + 1 if event.done else None)
        text = "\n".join(f"    {key} = {value}" for key, value in event.settings.items())
        self._writer.add_text("run file", text, 0, walltime=event.at_s)

    def device_reported(self, event: DeviceReported) -> None:
        """Its figures."""
        for name, value in event.figures.items():
            self._open.add_scalar(f"round_device/{event.device}/{name}", value, event.step, walltime=event.at_s)

    def round_committed(self, event: RoundCommitted) -> None:
        """Its figures, on disk at once."""
        for name, value in round_figures(event.entry).items():
            self._open.add_scalar(name, value, event.step, walltime=event.at_s)
        self._open.flush()

    def run_ended(self, event: RunEnded) -> None:
        """Nothing more comes."""
        self._open.flush()

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()

    @property
    def _open(self) -> SummaryWriter:
        if self._writer is None:
            raise RuntimeError(f"{self._folder}: no event file could be written")
        return self._writer
