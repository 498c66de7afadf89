"""What float16 costs a gradient, and how large arenas are: docs/measurements/2026-11-29-float16-activations.md.

    python -m benchmarks.float16_activations --gradients resnet20 conv2 mobilenet_v3_small
    python -m benchmarks.float16_activations --arenas resnet20 conv2 deit_tiny

Gradients: torch float64 with and without rounding, on the parity gate's values, which are two settings of a batch of 4.
Arenas: of the training program at batch 32 in each form, by ExecuTorch's own planner, by ours, and the bytes of values
that live at once, below which no plan gets.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import nn

from coordinator.models.catalog import build_model, input_spec, model_entry
from export.forms.step_form import PLAIN, StepForm, in_form
from export.gate_values import SETTINGS, gate_values
from export.programs import program_functions
from export.reference import ReferenceStep
from export.tensor_error import relative_errors, vanishing
from export.training_step import StepSpec

KEEP = StepForm(keep="float16")
MB = 2**20


def of_catalog(name: str, batch: int = 32) -> tuple[nn.Module, StepSpec]:
    """A model and its plain step."""
    entry = model_entry(name)
    classes = entry.classes if entry else 0
    return build_model(name), StepSpec(input=input_spec(name), classes=classes or 10, batch=batch)


def gradients(name: str) -> None:
    """One line per setting of the gate."""
    module, step = of_catalog(name)
    tensors = [item.spec for item in program_functions(module, step)["train"].inputs]
    for setting in SETTINGS[:2]:
        values = gate_values(step, tensors, seed=1, setting=setting)
        exact, rounded = (
            ReferenceStep(module, in_form(step, form), values, torch.float64).run(1, states=False)
            for form in (PLAIN, KEEP)
        )
        named = exact.gradients.keys() - vanishing(exact.gradients)
        errors = {n: e for n, e in relative_errors(rounded.gradients, exact.gradients).items() if n in named}
        off = math.sqrt(sum(np.square(rounded.gradients[n] - exact.gradients[n]).sum() for n in named))
        length = math.sqrt(sum(np.square(exact.gradients[n]).sum() for n in named))
        worst = max(errors, key=lambda n: errors[n])
        print(
            f"{name}, bias {setting.bias:g}: whole gradient {off / length:.1e}, worst tensor {worst} "
            f"{errors[worst]:.1e}, loss the same: {rounded.losses == exact.losses}",
            flush=True,
        )


class Plans:
    """Both planners' sizes of every program."""

    def __init__(self) -> None:
        self.found: list[tuple[float, float, float, float]] = []

    def planned(self, alignment: int, specs: Sequence[Any], *rest: Any) -> Any:
        """Our plan, in place of :func:`export.formats.executorch_program.arena.in_one_arena`."""
        from executorch.exir.memory_planning import greedy

        from export.formats.executorch_program.arena import Lifetime, in_one_arena, most_alive

        begun = time.perf_counter()
        ours = in_one_arena(alignment, specs, *rest)
        took = time.perf_counter() - begun
        alive = most_alive([Lifetime(s.allocated_memory, *s.lifetime) for s in specs])
        stock = greedy(alignment, specs, *rest)
        self.found.append((stock.bufsizes[1] / MB, ours.bufsizes[1] / MB, alive / MB, took))
        return ours


def arenas(name: str) -> None:
    """One line per form."""
    from export.formats import format_for
    from export.formats.executorch_program import lowering

    for form in (PLAIN, StepForm(recompute=True), KEEP):
        module, step = of_catalog(name)
        plans = Plans()
        with mock.patch.object(lowering, "in_one_arena", plans.planned):
            format_for("executorch").write(module, in_form(step, form))
        stock, ours, alive, took = max(plans.found)
        print(f"{name}, {form.name}: {stock:.1f} MB, {ours:.1f} MB, {alive:.1f} MB live; {took:.1f} s", flush=True)


def main() -> None:
    """Print the lines asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--gradients", action="store_true")
    parser.add_argument("--arenas", action="store_true")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    for name in chosen.models:
        if chosen.gradients:
            gradients(name)
        if chosen.arenas:
            arenas(name)


if __name__ == "__main__":
    main()
