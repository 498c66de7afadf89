"""``torchvision:NAME``: a network of torchvision for classification, with random weights."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from coordinator.models.libraries.library import NOTHING_FETCHED, imported, refuse_options
from coordinator.models.libraries.torchvision_import import prepare_torchvision
from edge.contracts.errors import ConfigError
from edge.contracts.manifest import InputSpec

if TYPE_CHECKING:
    from torch import nn

_SIDE = 224
_REFUSED = {
    "weights": NOTHING_FETCHED,
    "weights_backbone": NOTHING_FETCHED,
    "pretrained": NOTHING_FETCHED,
    "num_classes": "set [model] classes",
    "image_size": "set [model] input, its last two sizes",
    "aux_logits": "a step has one loss; the further classifiers are left out",
}


def input_of(name: str, shape: tuple[int, ...] | None, options: Mapping[str, Any]) -> InputSpec:
    """See :class:`coordinator.models.libraries.library.LibraryModels`."""
    _models(name)
    side = 299 if name == "inception_v3" else _SIDE
    if shape is not None and (len(shape) != 3 or shape[0] != 3):
        raise ConfigError([f"$.model.input: torchvision:{name} takes images [3, height, width], not {list(shape)}"])
    return InputSpec(layout="chw", shape=(3, side, side) if shape is None else tuple(shape))


def build(name: str, spec: InputSpec, classes: int, options: Mapping[str, Any]) -> nn.Module:
    """See :class:`coordinator.models.libraries.library.LibraryModels`."""
    refuse_options(f"torchvision:{name}", options, _REFUSED)
    models = _models(name)
    made: dict[str, Any] = dict(options)
    _, height, width = spec.shape
    if name.startswith("vit_") and height == width:
        made["image_size"] = height
    if name.startswith("maxvit"):
        made["input_size"] = (height, width)
    if name in ("googlenet", "inception_v3"):
        made |= {"aux_logits": False, "init_weights": True}
    module: nn.Module = models.get_model(name, weights=None, num_classes=classes, **made)
    return module


def _models(name: str) -> Any:
    prepare_torchvision()
    models = imported("torchvision.models")
    known = models.list_models(module=models)
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3)
        also = f", did you mean {' or '.join(near)}?" if near else f"; known: {', '.join(known)}"
        raise ConfigError([f"$.model.build: torchvision has no '{name}' for classification{also}"])
    return models
