"""A task's steps, run and checked: what fails in them is told with its line, and what is no loss or sum is refused."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from edge.contracts.errors import ApportionError, ExportRefused
from export.model_call import ModelCall
from export.tasks.resolved import ResolvedTask
from export.training_step import INPUT, StepSpec

SUM = "sum:"
"""``sum:<name>`` is a sum of the task's evaluation step, ``sum:<name>.<i>`` one entry of such a sum."""
LOGITS = "logits"
_OURS = ("/torch/", "/export/task_steps", "/export/model_call", "/export/tasks/resolved")


def task_batch(spec: StepSpec, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A batch as tasks see it, from a program's named inputs."""
    return {"x": values[INPUT], **{tensor.name: values[tensor.tensor] for tensor in spec.tensors}}


def training_loss(task: ResolvedTask, model: ModelCall, batch: Mapping[str, Tensor], name: str) -> Tensor:
    """The task's loss, checked.

    Raises:
        ExportRefused: the step fails, with the line, or gives no scalar that has a gradient.
    """
    with _told(name, "training_step", batch):
        loss: object = task.training_step(model, batch)
    if not isinstance(loss, Tensor) or loss.dim() or not loss.is_floating_point():
        got = f"{loss.dtype} {list(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise ExportRefused(
            _place(name), f"training_step gives {got}, a scalar loss is needed", instead="the mean over the batch"
        )
    return loss


def evaluation_sums(task: ResolvedTask, model: ModelCall, batch: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """``loss`` summed over the examples, the task's sums entry by entry, and what it predicts as ``logits``.

    Raises:
        ExportRefused: a step fails, with the line; a sum is none, or predictions are not one for each example.
    """
    count = batch["x"].shape[0]
    outputs = {"loss": training_loss(task, model, batch, name) * count}
    with _told(name, "evaluation_step", batch):
        sums: object = task.evaluation_step(model, batch)
    if not isinstance(sums, Mapping):
        raise _no_sums(name, f"gives {type(sums).__name__}")
    for key, value in sums.items():
        if not isinstance(value, Tensor) or not (value.is_floating_point() or value.dtype == torch.int64):
            raise _no_sums(name, f"gives {key} as {getattr(value, 'dtype', type(value).__name__)}")
        if value.dim() > 1 or (value.dim() == 1 and not isinstance(value.shape[0], int)):
            raise _no_sums(name, f"gives {key} of shape {[str(size) for size in value.shape]}, which is no sum")
        value = value.to(outputs["loss"].dtype)
        entries = {f"{SUM}{key}": value} if value.dim() == 0 else {}
        entries |= {f"{SUM}{key}.{i}": value[i] for i in range(value.shape[0] if value.dim() else 0)}
        outputs |= entries
    with _told(name, "predict", batch):
        predicted: object = task.predict(model, batch)
    if not isinstance(predicted, Tensor) or not predicted.dim() or not predicted.is_floating_point():
        raise ExportRefused(
            _place(name), "predict gives no float tensor [batch, ...]", instead="one prediction for each example"
        )
    return {**outputs, LOGITS: predicted}


def _no_sums(name: str, what: str) -> ExportRefused:
    return ExportRefused(
        _place(name),
        f"evaluation_step {what}; metrics are sums over the examples of a batch, as tensors of no or one fixed size",
        instead="x.sum(), and metrics(sums) for what they amount to",
    )


def _place(name: str) -> str:
    return f"(the task {name})"


@contextmanager
def _told(name: str, step: str, batch: Mapping[str, Tensor]) -> Iterator[None]:
    """Say of what fails inside in which line it does."""
    try:
        yield
    except ApportionError:
        raise
    except KeyError as error:
        if error.args and error.args[0] not in batch and isinstance(error.args[0], str):
            raise ExportRefused(
                _place(name),
                f"{step} reads batch[{error.args[0]!r}] ({_line(error)}), a batch has {', '.join(batch)}",
                instead="one of these, or name it in tensors()",
            ) from error
        raise ExportRefused(_place(name), f"{step} fails in {_line(error)}: {error!r}", instead="mend it") from error
    except Exception as error:  # the step is anyone's
        raise ExportRefused(
            _place(name),
            f"{step} fails in {_line(error)}: {type(error).__name__}: {str(error)[:300]}",
            instead="torch operations on whole tensors, without .item(), .numpy() or an if on values,",
        ) from error


def _line(error: BaseException) -> str:
    """File, line and text of the innermost place in the task's own code."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not any(part in frame.filename for part in _OURS)] or list(frames)
    frame = own[-1]
    return f"{frame.filename.rpartition('/')[2]}, line {frame.lineno}: {(frame.line or '').strip()}"
