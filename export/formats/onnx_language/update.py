"""What becomes of each gradient: the optimizer's rule right beside it, or a sum over micro-batches.

The formulas are those of :func:`export.step_functions.updated`. Only clipping waits, because it needs them all.
"""

from __future__ import annotations

import msgspec

from edge.contracts.tensors import TensorSpec
from edge.runtimes.micro_batches import gradient_sum
from export.formats.onnx_language.graph import StepGraph
from export.parameter_groups import Rate, rates
from export.step_functions import STEP_SLOT
from export.training_step import StepSpec


def hyper_spec(name: str) -> TensorSpec:
    """A scalar that a step is told."""
    return TensorSpec(name, (), "float32", "hyper")


def slot_spec(parameter: TensorSpec, suffix: str) -> TensorSpec:
    """A slot of ``parameter``."""
    return msgspec.structs.replace(parameter, name=f"{parameter.name}#{suffix}", role="slot")


class Learning:
    """Takes gradients as they arise.

    Args:
        trained: the factors that move, in the module's order.
    """

    def __init__(self, graph: StepGraph, spec: StepSpec, trained: tuple[TensorSpec, ...]) -> None:
        self._graph, self._spec = graph, spec
        self._rates = rates(spec, [parameter.name for parameter in trained])
        self._waiting: list[tuple[TensorSpec, str]] = []
        self._shared: dict[str, str] = {}

    def prepare(self) -> None:
        """Write what all parameters read, before the first gradient."""
        graph, spec = self._graph, self._spec
        graph.scope = "update"
        hyper = {name: graph.input(hyper_spec(name)) for name in spec.hyper}
        if spec.optimizer.kind == "sgd":
            self._shared = hyper
            return
        counter = TensorSpec(STEP_SLOT, (), "float32", "slot")
        step = graph.add(graph.input(counter), 1.0, name=f"next:{STEP_SLOT}")
        graph.output(step, counter)
        rest = {n: graph.sub(1.0, hyper[n]) for n in ("beta1", "beta2")}
        roots = {n: graph.sub(1.0, graph.pair("Pow", hyper[n], step)) for n in ("beta1", "beta2")}
        self._shared = hyper | {
            "rest1": rest["beta1"],
            "rest2": rest["beta2"],
            "size": graph.div(hyper["lr"], roots["beta1"]),
            "root": graph.map("Sqrt", roots["beta2"]),
        }

    def learn(self, parameter: TensorSpec, gradient: str) -> None:
        """Move ``parameter``, or let its gradient wait for the others where their norm is clipped."""
        if self._spec.clip_norm:
            self._waiting.append((parameter, gradient))
        else:
            self._move(parameter, gradient)

    def finish(self) -> None:
        """Move what waits."""
        if not self._waiting:
            return
        graph = self._graph
        graph.scope = "clip"
        squares = [graph.total("ReduceSumSquare", gradient) for _, gradient in self._waiting]
        summed = squares[0]
        for square in squares[1:]:
            summed = graph.add(summed, square)
        norm = graph.add(graph.map("Sqrt", summed), 1e-6)
        share = graph.pair("Min", graph.div(self._shared["clip_norm"], norm), 1.0)
        for parameter, gradient in self._waiting:
            self._move(parameter, graph.mul(gradient, share))

    def _move(self, parameter: TensorSpec, gradient: str) -> None:
        scope, self._graph.scope = self._graph.scope, f"update/{parameter.name}"
        rule = self._sgd if self._spec.optimizer.kind == "sgd" else self._adam
        rule(parameter, gradient, self._rates[parameter.name])
        self._graph.scope = scope

    def _lr(self, rate: Rate, size: str) -> str:
        return self._graph.mul(size, self._shared[rate.lr_factor]) if rate.lr_factor else size

    def _decayed(self, parameter: TensorSpec, gradient: str, rate: Rate) -> str:
        if not rate.weight_decay:
            return gradient
        graph = self._graph
        return graph.add(gradient, graph.mul(graph.input(parameter), self._shared[rate.weight_decay]))

    def _sgd(self, parameter: TensorSpec, gradient: str, rate: Rate) -> None:
        graph, shared, rule = self._graph, self._shared, self._spec.optimizer
        direction = self._decayed(parameter, gradient, rate)
        if rule.momentum:
            slot = slot_spec(parameter, "momentum")
            before = graph.mul(graph.input(slot), shared["momentum"])
            velocity = graph.add(before, direction, name=f"next:{slot.name}")
            graph.output(velocity, slot)
            direction = graph.add(direction, graph.mul(velocity, shared["momentum"])) if rule.nesterov else velocity
        self._stepped(parameter, graph.input(parameter), graph.mul(direction, self._lr(rate, shared["lr"])))

    def _adam(self, parameter: TensorSpec, gradient: str, rate: Rate) -> None:
        graph, shared = self._graph, self._shared
        value, direction = graph.input(parameter), gradient
        if rate.weight_decay and self._spec.optimizer.kind == "adamw":
            pace = graph.mul(self._lr(rate, shared["lr"]), shared[rate.weight_decay])
            value = graph.sub(value, graph.mul(value, pace))
        else:
            direction = self._decayed(parameter, gradient, rate)
        first, second = slot_spec(parameter, "exp_avg"), slot_spec(parameter, "exp_avg_sq")
        mean = graph.add(
            graph.mul(graph.input(first), shared["beta1"]),
            graph.mul(direction, shared["rest1"]),
            name=f"next:{first.name}",
        )
        square = graph.add(
            graph.mul(graph.input(second), shared["beta2"]),
            graph.mul(graph.mul(direction, direction), shared["rest2"]),
            name=f"next:{second.name}",
        )
        graph.output(mean, first)
        graph.output(square, second)
        root = graph.add(graph.div(graph.map("Sqrt", square), shared["root"]), shared["eps"])
        self._stepped(parameter, value, graph.mul(graph.div(mean, root), self._lr(rate, shared["size"])))

    def _stepped(self, parameter: TensorSpec, value: str, change: str) -> None:
        moved = self._graph.sub(value, change, name=f"next:{parameter.name}")
        self._graph.output(moved, parameter)


class Adding:
    """Takes gradients of one micro-batch and adds each to its sum."""

    def __init__(self, graph: StepGraph) -> None:
        self._graph = graph

    def learn(self, parameter: TensorSpec, gradient: str) -> None:
        """Add the gradient."""
        total = msgspec.structs.replace(parameter, name=gradient_sum(parameter.name), role="slot")
        added = self._graph.add(self._graph.input(total), gradient, name=f"next:{total.name}")
        self._graph.output(added, total)
