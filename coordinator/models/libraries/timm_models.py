"""``timm:NAME``: a network of timm (PyTorch Image Models) with random weights."""

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

_REFUSED = {
    **dict.fromkeys(("pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "cache_dir"), NOTHING_FETCHED),
    "checkpoint_path": NOTHING_FETCHED,
    "num_classes": "set [model] classes",
    "in_chans": "set [model] input, its first size",
    "img_size": "set [model] input, its last two sizes",
}


def input_of(name: str, shape: tuple[int, ...] | None, options: Mapping[str, Any]) -> InputSpec:
    """See :class:`coordinator.models.libraries.library.LibraryModels`."""
    own = tuple(_settings(name).input_size)
    if shape is not None and len(shape) != 3:
        raise ConfigError([f"$.model.input: timm:{name} takes images, e.g. {list(own)}; got {list(shape)}"])
    return InputSpec(layout="chw", shape=own if shape is None else tuple(shape))


def build(name: str, spec: InputSpec, classes: int, options: Mapping[str, Any]) -> nn.Module:
    """See :class:`coordinator.models.libraries.library.LibraryModels`."""
    refuse_options(f"timm:{name}", options, _REFUSED)
    settings = _settings(name)
    channels, *size = spec.shape
    sized: dict[str, Any] = dict(options)
    if settings.fixed_input_size and spec.shape[1:] != tuple(settings.input_size[1:]):
        sized["img_size"] = tuple(size)
    if channels != 3:
        sized["in_chans"] = channels
    module: nn.Module = imported("timm").create_model(name, pretrained=False, num_classes=classes, **sized)
    return module


def _settings(name: str) -> Any:
    """timm's own settings of ``name``: size of its images, and whether they can have another one."""
    prepare_torchvision()
    timm = imported("timm")
    plain = name.partition(".")[0]  # what follows names weights
    known = timm.list_models()
    # Its other names, such as hf-hub:..., fetch from somewhere.
    if plain not in known:
        near = difflib.get_close_matches(plain, known, n=3)
        also = f", did you mean {' or '.join(near)}?" if near else ""
        raise ConfigError([f"$.model.build: timm {timm.__version__} has no '{name}'{also}; timm.list_models() lists"])
    return timm.get_pretrained_cfg(plain) or timm.models.PretrainedCfg(input_size=(3, 224, 224))
