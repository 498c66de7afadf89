"""A run that starts from given weights: a safetensors file in the module's own names and shapes, never unpickled.

``[model] weights = "base.safetensors"``. Every tensor of the module must be there, in float32 (counters in int64), but
for those that ``weights-except`` names, which keep what the run's seed gave them: the classifier of a base that was
trained on other classes. ``weights-map`` is for files in other names (:mod:`coordinator.exporting.weight_names`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.exporting.weight_names import fitting_maps, named_map, renamed
from edge.contracts.errors import ArtifactCorrupt, ConfigError
from edge.contracts.tensor_file import read_tensor_file

if TYPE_CHECKING:
    from torch import nn

_SHOWN = 4
"""Names in a message; how many there are is said beside them."""


def load_initial_weights(
    module: nn.Module,
    path: Path,
    exceptions: Sequence[str] = (),
    *,
    names: str | Mapping[str, str] = "",
    build: str = "",
) -> None:
    """Fill ``module`` with the tensors of the file, in place.

    Args:
        exceptions: shell-style patterns of the module's names that keep their values, whatever the file has there.
        names: map from the file's names to the module's, or a map's name.
        build: what made the module, which named maps go by.

    Raises:
        ConfigError: no such file, not safetensors, or tensors that do not fit; all of what does not, by name.
    """
    import numpy as np
    import torch

    if not path.is_file():
        raise ConfigError([f"$.model.weights: {path}: no such file; give a safetensors file of this model's weights"])
    try:
        tensors = read_tensor_file(path, where=str(path))
    except (OSError, ArtifactCorrupt) as error:
        raise ConfigError(
            [f"$.model.weights: {path} cannot be read as safetensors ({error}); convert it, a pickle is never opened"]
        ) from error
    held = module.state_dict()
    original = list(tensors)
    if names:
        patterns = named_map(names, module, build) if isinstance(names, str) else names
        mapped = renamed(tensors, patterns, whole=not isinstance(names, str))
        tensors = {mapped[name]: value for name, value in tensors.items() if name in mapped}
    kept = {name for name in {*held, *tensors} if any(fnmatchcase(name, pattern) for pattern in exceptions)}
    unused = [pattern for pattern in exceptions if not any(fnmatchcase(name, pattern) for name in held)]
    problems = [f"$.model.weights-except: '{pattern}' names no tensor of the module" for pattern in unused]
    missing = sorted(held.keys() - tensors.keys() - kept)
    unknown = sorted(tensors.keys() - held.keys() - kept)
    wrong = []
    for name in sorted(held.keys() & tensors.keys() - kept):
        value, dtype = tensors[name], str(held[name].dtype).removeprefix("torch.")
        if tuple(value.shape) != tuple(held[name].shape) or str(value.dtype) != dtype:
            expected = f"{dtype} {list(held[name].shape)}"
            wrong.append(f"'{name}' is {value.dtype} {list(value.shape)}, {expected} expected")
    if missing:
        shown = _some([f"{name} {list(held[name].shape)}" for name in missing])
        problems.append(f"$.model.weights: {path} lacks {shown} of the module")
    if unknown:
        shown = _some([f"{name} {list(tensors[name].shape)}" for name in unknown])
        problems.append(f"$.model.weights: {path} has {shown} that the module has not")
    if wrong:
        problems.append(f"$.model.weights: {path}: {_some(wrong)}")
    if problems:
        hint = "map the file's names in [model.weights-map], or name those to leave as they are in weights-except"
        if (missing or unknown) and not names and (fitting := fitting_maps(original, held, module, build)):
            hint = f'these names are known: set weights-map = "{fitting[0]}"; and see weights-except'
        raise ConfigError(problems, hint=hint)
    with torch.no_grad():
        for name, value in tensors.items():
            if name not in kept:
                held[name].copy_(torch.from_numpy(np.array(value)))


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
