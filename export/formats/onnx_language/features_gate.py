"""The parity gate of program ``features``: what enters the first trained block, beside torch; and steps that read it.

The step itself is then held to torch from the very values that the program gave. So each of the two is compared with
nothing but its own rounding, and a float16 stream needs no tolerance of its own beyond half a step of float16.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from edge.contracts.tensors import FEATURES
from edge.runtimes.onnxruntime.file_order import ask_for_file_order
from export.formats.onnx_language.cut_tensors import cut_tensors
from export.graph_session import GraphSession
from export.language.causal_model import CausalModel
from export.language.reference import Begun, LanguageReference
from export.parity import check_worst
from export.tensor_error import worst_error
from export.training_step import INPUT, StepSpec

_HALF_STEP = {"float32": 0.0, "float16": 2.0**-11}
"""What rounding to the stored type alone moves a value by at most, relative to it."""


def features_in(programs: Mapping[str, bytes], values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """``values`` with the features that program ``features`` makes of them, where there is one."""
    if FEATURES not in programs:
        return dict(values)
    session = GraphSession(programs[FEATURES], set_options=ask_for_file_order)
    (stream,) = session.run(values).values()
    return {**values, FEATURES: stream}


def begun(module: CausalModel, spec: StepSpec, values: Mapping[str, np.ndarray]) -> Begun | None:
    """Where torch begins a step on ``values``: at its features, or at its symbols."""
    return Begun(cut_tensors(module, spec).first, values[FEATURES]) if FEATURES in values else None


def check_features(
    module: CausalModel, spec: StepSpec, values: Mapping[str, np.ndarray], factors: Sequence[str]
) -> None:
    """Check the features among ``values`` against torch float64, where there are any.

    Args:
        factors: names of those that move, of which the blocks below read none.

    Raises:
        ParityError: they are further off than rounding.
    """
    if FEATURES not in values:
        return
    given = {name: values[name] for name in factors}
    found = []
    for dtype in (torch.float64, torch.float32):
        reference, moved = LanguageReference(module, values, dtype), {n: torch.from_numpy(v) for n, v in given.items()}
        with torch.no_grad():
            stream = reference.hidden(moved, values[INPUT], blocks=cut_tensors(module, spec).first)
        found.append({FEATURES: stream.numpy()})
    got = {FEATURES: values[FEATURES].astype(np.float64)}
    worst = worst_error(got, found[0], found[1])
    check_worst("program features", replace(worst, tolerance=worst.tolerance + _HALF_STEP[spec.cached_features]))
