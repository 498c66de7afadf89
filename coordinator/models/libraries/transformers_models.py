"""``transformers:TYPE``: a network of transformers with random weights, as a classifier.

TYPE is a model type such as ``vit`` or ``bert``; its settings are the model's options, over those of a ``config.json``
that was named instead of a type (:mod:`coordinator.models.libraries.config_file`). Images, texts (token numbers) and
sound (samples) are taken, by what the type is made for.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from coordinator.models.libraries.config_file import BOOKKEEPING, CONFIG
from coordinator.models.libraries.library import NOTHING_FETCHED, imported, refuse_options
from coordinator.models.libraries.torchvision_import import prepare_torchvision
from edge.contracts.errors import ConfigError
from edge.contracts.manifest import InputSpec

_REFUSED = {
    "pretrained": NOTHING_FETCHED,
    "num_labels": "set [model] classes",
    "id2label": "set [model] classes",
    "label2id": "set [model] classes",
    "auto_map": "code that a configuration names is not run; use package.module:function",
}

Kind = Literal["IMAGE", "SEQUENCE", "AUDIO"]
_TAKES: dict[Kind, str] = {"IMAGE": "pixel_values", "SEQUENCE": "input_ids", "AUDIO": "input_values"}
_AUTO: dict[Kind, str] = {
    "IMAGE": "AutoModelForImageClassification",
    "SEQUENCE": "AutoModelForSequenceClassification",
    "AUDIO": "AutoModelForAudioClassification",
}


class Logits(nn.Module):
    """What a transformers classifier gives, without what else it gives: [B, ...] -> [B, classes].

    Args:
        takes: name of the network's argument.
    """

    def __init__(self, network: nn.Module, takes: str) -> None:
        super().__init__()
        self.network = network
        self.takes = takes

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.network(**{self.takes: x}).logits
        return logits


def input_of(name: str, shape: tuple[int, ...] | None, options: Mapping[str, Any]) -> InputSpec:
    """See :class:`coordinator.models.libraries.library.LibraryModels`."""
    kind, config = _configured(name, shape, options)
    if kind == "IMAGE":
        if shape is not None and len(shape) != 3:
            raise ConfigError(
                [f"$.model.input: transformers:{name} takes images [3, height, width], not {list(shape)}"]
            )
        side = getattr(config, "image_size", None) or 224
        height, width = side if isinstance(side, list | tuple) else (side, side)
        return InputSpec(
            layout="chw", shape=shape or (int(getattr(config, "num_channels", 3)), int(height), int(width))
        )
    if shape is None or len(shape) != 1:
        what = "tokens of a text, e.g. [128]" if kind == "SEQUENCE" else "samples of a sound, e.g. [16000]"
        raise ConfigError([f"$.model.input: transformers:{name} needs the number of {what}"])
    if kind == "AUDIO":
        return InputSpec(layout="features", shape=shape)
    return InputSpec(layout="tokens", shape=shape, dtype="int64", vocabulary=int(config.vocab_size))


def build(name: str, spec: InputSpec, classes: int, options: Mapping[str, Any]) -> nn.Module:
    """See :class:`coordinator.models.libraries.library.LibraryModels`."""
    kind, config = _configured(name, spec.shape, options)
    config.num_labels = classes
    auto = getattr(imported("transformers"), _AUTO[kind])
    # The plain attention: what an exporter carries on every runtime.
    network: nn.Module = auto.from_config(config, attn_implementation="eager", trust_remote_code=False)
    return Logits(network.to(torch.float32), _TAKES[kind]).train()


def _configured(name: str, shape: tuple[int, ...] | None, options: Mapping[str, Any]) -> tuple[Kind, Any]:
    """What the type is made for, and its configuration for examples of ``shape``."""
    refuse_options(f"transformers:{name}", options, _REFUSED)
    prepare_torchvision()
    transformers = imported("transformers")
    mappings = imported("transformers.models.auto.modeling_auto")
    kinds: list[Kind] = [k for k in _TAKES if name in getattr(mappings, f"MODEL_FOR_{k}_CLASSIFICATION_MAPPING_NAMES")]
    if not kinds:
        known = sorted({n for k in _TAKES for n in getattr(mappings, f"MODEL_FOR_{k}_CLASSIFICATION_MAPPING_NAMES")})
        near = difflib.get_close_matches(name, known, n=3)
        also = f", did you mean {' or '.join(near)}?" if near else ""
        raise ConfigError([f"$.model.build: transformers has no classifier of type '{name}'{also}"])
    kind = kinds[0]
    plain = transformers.AutoConfig.for_model(name)
    given = {key: value for key, value in options.items() if key != CONFIG}
    problems = [
        f"$.model.options.{key}: transformers:{name} has no such setting" for key in given if not hasattr(plain, key)
    ]
    if problems:
        raise ConfigError(problems)
    base = json.loads(options.get(CONFIG, "{}"))
    settings = {k: v for k, v in base.items() if hasattr(plain, k) and k not in BOOKKEEPING} | given
    if kind == "IMAGE" and shape is not None and len(shape) == 3:
        channels, height, width = shape
        settings["num_channels"] = channels
        if hasattr(plain, "image_size"):
            settings["image_size"] = height if height == width else (height, width)
    if hasattr(plain, "use_cache"):
        settings["use_cache"] = False
    try:
        return kind, transformers.AutoConfig.for_model(name, **settings)
    except Exception as error:  # configurations check their values with whatever they like
        raise ConfigError([f"$.model.options: transformers:{name}: {type(error).__name__}: {error}"]) from error
