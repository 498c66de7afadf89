"""Loss and metrics of a task's models on the coordinator's held-out data, with torch, by the task's own steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from coordinator.data.inputs import prepare_inputs
from coordinator.rounds.choice_scores import choice_entropy
from coordinator.rounds.evaluation import Score, evaluated_module
from coordinator.submodels.values import Submodel
from edge.contracts.errors import ConfigError
from edge.language.questions import SUMS, ChoiceWindows, choice_sums
from edge.training.local_data import LocalData
from edge.training.records import entry, names_of
from edge.training.task_tensors import BatchSpec, array_name, fit_tensors

if TYPE_CHECKING:
    import torch
    from torch import nn

    from export.tasks.resolved import ResolvedTask

_LOSS, _EXAMPLES = "loss", "examples"


class TaskEvaluator:
    """Scores submodels as :class:`coordinator.rounds.evaluation.Evaluator` does, by a task instead of logits.

    Args:
        y: what the examples have beside ``x``, see :mod:`edge.training.records`.
        task: of a module, as tasks that are a model's own need.
        batch_spec: what a batch has.
        choices: questions that a language model is scored on, too.
    """

    def __init__(
        self,
        module: Callable[[], nn.Module],
        x: np.ndarray,
        y: np.ndarray,
        batch_spec: BatchSpec,
        task: Callable[[nn.Module], ResolvedTask],
        *,
        batch: int,
        norm: str,
        device: str = "cpu",
        choices: ChoiceWindows | None = None,
    ) -> None:
        self._module, self._task, self._spec, self._choices = module, task, batch_spec, choices
        self.inputs = prepare_inputs(x, batch_spec.input)
        self.labels = fit_tensors(LocalData("held-out data", x, y), batch_spec)
        self.batch, self.norm, self._device = batch, norm, device

    def score(self, submodel: Submodel) -> Score:
        """The score of one model."""
        return self.score_of(self.outputs(submodel))

    def outputs(self, submodel: Submodel) -> np.ndarray:
        """One record for each batch: its sums, ``loss`` and ``examples`` among them; those of questions once."""
        import torch

        from export.model_call import ModelCall

        module = evaluated_module(self._module(), submodel, self.norm, self._device)
        task, found = self._task(module), []
        with torch.no_grad():
            for start in range(0, len(self.inputs), self.batch):
                batch = self._batch(start)
                model = ModelCall(module, keeps=True)
                loss = task.training_step(model, batch)
                sums = {
                    name: value.double().cpu().numpy() for name, value in task.evaluation_step(model, batch).items()
                }
                count = len(batch["x"])
                found.append({**sums, _LOSS: np.float64(float(loss) * count), _EXAMPLES: np.float64(count)})
        if self._choices is not None:
            entropy = choice_entropy(module, self._choices, batch=self.batch, device=self._device)
            asked = choice_sums(self._choices, entropy)
            found = [
                {**sums, **(asked if not number else dict.fromkeys(SUMS, 0.0))} for number, sums in enumerate(found)
            ]
        made = np.zeros(len(found), [(name, np.float64, np.shape(value)) for name, value in found[0].items()])
        for row, values in zip(made, found, strict=True):
            for name, value in values.items():
                row[name] = value
        return made

    def score_of(self, outputs: np.ndarray) -> Score:
        """The score by the records of all batches."""
        sums = {name: np.asarray(entry(outputs, name).sum(0)) for name in names_of(outputs)}
        loss, count = float(sums.pop(_LOSS)), float(sums[_EXAMPLES])
        metrics = self._task(self._module()).metrics(sums)
        return Score(loss / count, metrics.get("accuracy", float("nan")), int(count), metrics)

    def predictions(self, submodel: Submodel) -> np.ndarray:
        """What the task predicts for each example, float32 [N, ...]."""
        import torch

        from export.model_call import ModelCall

        module = evaluated_module(self._module(), submodel, self.norm, self._device)
        task = self._task(module)
        with torch.no_grad():
            parts = [
                task.predict(ModelCall(module), self._batch(start)).cpu().numpy()
                for start in range(0, len(self.inputs), self.batch)
            ]
        return np.concatenate(parts)

    def logits(self, submodel: Submodel) -> np.ndarray:
        """No task has any.

        Raises:
            ConfigError: always.
        """
        raise ConfigError([f"$.task.name: '{self._spec.task}' has no logits, which is what was asked for"])

    def _batch(self, start: int) -> dict[str, torch.Tensor]:
        import torch

        rows = slice(start, start + self.batch)
        batch = {"x": torch.tensor(self.inputs[rows]).to(self._device)}
        for spec in self._spec.tensors:
            name = array_name(spec)
            batch[name] = torch.tensor(entry(self.labels[rows], name)).to(self._device)
        return batch
