"""A public model's folder: its architecture, its tensors under the names of :class:`CausalModel`, and the way back.

Weights are safetensors, in one file or several with an index. Pickled ones are never read.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from coordinator.language.configuration import CONFIG, configuration_of, read_architecture, read_configuration
from coordinator.language.names import HEAD, PREFIX, is_ignored, source_name
from coordinator.language.tensor_files import TensorFile, write_tensors
from edge.contracts.errors import ConfigError
from export.language.architecture import Architecture

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json",
                   "chat_template.jinja")  # fmt: skip
"""What goes along with a model into another folder; the tables in them are the owner's."""

_SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id")


def tensor_shapes(architecture: Architecture) -> dict[str, tuple[int, ...]]:
    """Names and shapes of every tensor of the model, in the module's order."""
    from export.language.causal_model import meta_model

    return {name: tuple(value.shape) for name, value in meta_model(architecture).named_parameters()}


def tensors(folder: Path, architecture: Architecture | None = None) -> Iterator[tuple[str, np.ndarray]]:
    """Every tensor of the model in ``folder`` by its name here, float32, one at a time, in the module's order.

    Nothing is held: a tensor in float32 is a view of its file, others are converted when they are asked for.

    Args:
        architecture: of the folder, where it has been read already.

    Raises:
        ConfigError: no safetensors, a tensor that is missing, has another shape or that the model has no place for;
            before the first tensor.
    """
    shape = architecture or read_architecture(folder)
    found = _places(folder)
    prefix = PREFIX[shape.family]
    if not any(name.startswith(prefix) for name in found):
        found = {name if name == HEAD else prefix + name: value for name, value in found.items()}
    read, problems = [], []
    for name, wanted in tensor_shapes(shape).items():
        source = source_name(shape, name)
        place = found.pop(source.name, None)
        if place is None:
            problems.append(f"{folder}: no tensor '{source.name}', which its {CONFIG} needs; copy the folder again")
            continue
        file, key = place
        there = file.shape(key)
        if (there[::-1] if source.is_transposed else there) != wanted:
            expected = wanted[::-1] if source.is_transposed else wanted
            problems.append(
                f"{file.path}: '{key}' has shape {there}, its {CONFIG} says {expected}; give both of one model"
            )
        read.append((name, file, key, source.is_transposed))
    if extra := sorted(name for name in found if not is_ignored(shape, name)):
        problems.append(f"{folder}: {len(extra)} tensors that a {shape.family} model has no place for: {extra[:4]}")
    if problems:
        raise ConfigError(problems[:8])
    for name, file, key, is_transposed in read:
        value = file.read(key)
        yield name, np.ascontiguousarray(value.T) if is_transposed else value


def _places(folder: Path) -> dict[str, tuple[TensorFile, str]]:
    """Name in the files -> file and name."""
    index, whole = folder / INDEX, folder / WEIGHTS
    if whole.is_file():
        names = [WEIGHTS]
    elif index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
            if wrong := [name for name in names if Path(name).name != name]:
                raise ValueError(f"a file {wrong[0]!r} outside of the folder")
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError([f"{index}: cannot be read ({error!r}); copy it again"]) from error
    else:
        pickled = sorted(path.name for path in folder.glob("*.bin"))
        raise ConfigError(
            [f"{folder}: no {WEIGHTS} there{f', and {pickled[0]} is pickled: never read' if pickled else ''}"],
            hint="write it so: AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(FOLDER)",
        )
    return {name: (file, name) for file in (TensorFile(folder / part) for part in names) for name in file.names}


def source_tensors(
    architecture: Architecture, values: Iterable[tuple[str, np.ndarray]]
) -> Iterator[tuple[str, np.ndarray]]:
    """The way back: tensors by their names here as the family's files hold them, one at a time."""
    for name, value in values:
        source = source_name(architecture, name)
        yield source.name, np.ascontiguousarray(value.T) if source.is_transposed else value


def write_folder(
    folder: Path,
    architecture: Architecture,
    values: Iterable[tuple[str, np.ndarray]],
    *,
    origin: Path | None = None,
) -> None:
    """Write a model folder that public tools load, float32.

    Args:
        folder: is there and empty.
        values: every tensor of the model, in the module's order, as :func:`tensors` gives them.
        origin: folder whose tokenizer's files and special symbols go along.

    Raises:
        ConfigError: the family's files cannot say what the architecture is.
    """
    special: dict[str, Any] = {}
    if origin is not None:
        read = read_configuration(origin) if (origin / CONFIG).is_file() else {}
        special = {key: read.get(key) for key in _SPECIAL}
    text = json.dumps(configuration_of(architecture, **special), indent=2)
    specs = {}
    for name, shape in tensor_shapes(architecture).items():
        source = source_name(architecture, name)
        specs[source.name] = (shape[::-1] if source.is_transposed else shape, "float32")
    write_tensors(folder / WEIGHTS, specs, source_tensors(architecture, values))
    (folder / CONFIG).write_text(text + "\n", encoding="utf-8")
    for name in TOKENIZER_FILES if origin is not None else ():
        assert origin is not None
        if (origin / name).is_file():
            shutil.copyfile(origin / name, folder / name)
