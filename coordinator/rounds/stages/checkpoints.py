"""The best model so far and every so many rounds' model as files, and the end of training where nothing improves.

A file is written after its round is committed. A coordinator that was killed in between writes it when it goes on:
the model of the last committed round is the one it begins with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coordinator.config.run_config import RunConfig
from coordinator.exporting.task_metric import is_lower_better
from coordinator.rounds.best_round import best_round, rounds_until_stop, score_of
from coordinator.rounds.federation import Federation, RoundStage
from coordinator.rounds.global_model import write_final
from coordinator.submodels.values import State

BEST = "best.safetensors"


class Checkpoints(RoundStage):
    """In a run with ``patience``, ``keep-best`` or ``keep-every`` of ``[federation]``."""

    @classmethod
    def is_used(cls, config: RunConfig) -> bool:
        """Whether the run asks for it."""
        federation = config.federation
        return bool(federation.patience or federation.keep_best or federation.keep_every)

    def history(self, federation: Federation) -> Sequence[Mapping[str, Any]]:
        """``round`` and figures of every committed round, in their order."""
        return [{**r.metrics, "round": r.round} for r in federation.ledger.rounds.all() if r.state == "committed"]

    def training_rounds(self, federation: Federation, planned: int) -> int:
        """Fewer than planned once the evaluation has not improved for ``patience`` times."""
        config = federation.config.federation
        return _until_stop(federation, self.history(federation)) if config.patience else planned

    def restored(self, federation: Federation, state: State) -> None:
        """Write what the last committed round should have left."""
        if history := self.history(federation):
            self._write(federation, state, history)

    def committed(self, federation: Federation, state: State, entry: Mapping[str, Any]) -> None:
        """Write what the round leaves, and say when training is over."""
        config, history = federation.config.federation, self.history(federation)
        self._write(federation, state, history)
        if config.patience and state.round == _until_stop(federation, history) < config.rounds:
            federation.progress.say(
                f"{config.metric} of the global model has not improved for {config.patience} evaluations: training "
                f"ends after round {state.round} of {config.rounds}"
            )

    def _write(self, federation: Federation, state: State, history: Sequence[Mapping[str, Any]]) -> None:
        config, folder, last = federation.config.federation, federation.checkpoints, int(history[-1]["round"])
        if folder is None:
            return
        if config.keep_best and _best(federation.config, history) == last:
            write_final(state, folder / BEST)
        is_trained = last < self.training_rounds(federation, config.rounds)
        if config.keep_every and is_trained and (last + 1) % config.keep_every == 0:
            write_final(state, folder / f"round-{last + 1:05d}.safetensors")


def _best(config: RunConfig, history: Sequence[Mapping[str, Any]]) -> int | None:
    return best_round(history, config.federation.metric, is_lower=is_lower_better(config))


def _until_stop(federation: Federation, history: Sequence[Mapping[str, Any]]) -> int:
    config = federation.config
    return rounds_until_stop(history, config.federation, is_lower=is_lower_better(config))


def best_summary(config: RunConfig, history: Sequence[Mapping[str, Any]], trained: int) -> dict[str, Any]:
    """What ``summary.json`` says of the best model and of the end of training; nothing where neither is asked for."""
    found: dict[str, Any] = {}
    federation = config.federation
    if federation.keep_best and (best := _best(config, history)) is not None:
        value = next(score_of(entry, federation.metric) for entry in history if entry["round"] == best)
        found["best"] = {"round": best + 1, "metric": federation.metric, "value": value, "file": BEST}
    if federation.patience:
        found["stopped_early"] = trained < federation.rounds
    return found
