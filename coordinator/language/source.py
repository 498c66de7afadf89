"""Which language model a run file names, and its values one tensor at a time: no model is ever whole in memory here.

``language:NAME`` is the shape of a public model with random weights, ``language:custom`` an architecture in the model's
options, ``language:FOLDER`` a folder as Hugging Face writes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from edge.contracts.errors import ConfigError
from export.language.architecture import PUBLIC, Architecture, Precision

if TYPE_CHECKING:
    import numpy as np

PREFIX = "language:"
CUSTOM = "custom"
BASE = "base"
"""The option that says how the frozen base is held."""
ARCHITECTURE = "architecture"
"""The option that holds the parts of ``language:custom``, a table."""


@dataclass(frozen=True)
class LanguageSource:
    """A language model as a run file names it.

    Attributes:
        folder: of its files; None: random weights.
    """

    architecture: Architecture
    precision: Precision
    folder: Path | None = None

    def values(self, seed: int) -> Iterator[tuple[str, np.ndarray]]:
        """(Name in the module, float32 array) of every tensor; random ones are a function of ``seed`` alone.

        Raises:
            ConfigError: files of the folder that are not its model's.
        """
        if self.folder is None:
            from coordinator.language.random_weights import random_values

            return random_values(self.architecture, seed)
        from coordinator.language.folder import tensors

        found: Iterator[tuple[str, np.ndarray]] = tensors(self.folder)
        return found


def is_language(build: str) -> bool:
    """Whether ``[model] build`` names a language model."""
    return build.startswith(PREFIX)


def names_language_model(run_file: str) -> bool:
    """Whether the text of a run's file, as the run keeps it, names a language model."""
    return f'\nbuild = "{PREFIX}' in run_file


def source_of_build(build: str, options: Mapping[str, Any]) -> LanguageSource:
    """As :func:`source_of`, by the whole of ``[model] build``."""
    return source_of(build.removeprefix(PREFIX), options)


def source_of(name: str, options: Mapping[str, Any]) -> LanguageSource:
    """The model called ``name``, what follows ``language:``.

    Raises:
        ConfigError: an unknown name or option, or an architecture that is none.
    """
    problems: list[str] = []
    precision: Any = options.get(BASE, "int8")
    if precision not in get_args(Precision):
        problems.append(
            f"$.model.options.{BASE}: '{precision}' given, one of {', '.join(get_args(Precision))} expected"
        )
    own = {key: value for key, value in options.items() if key not in (BASE, ARCHITECTURE)}
    problems += [
        f"$.model.options.{key}: no option of a language model; {BASE}, and {ARCHITECTURE} of {PREFIX}{CUSTOM}"
        for key in own
    ]
    given = options.get(ARCHITECTURE, {})
    if name == CUSTOM:
        architecture = _custom(given, problems)
    else:
        if given:
            problems.append(
                f"$.model.options.{ARCHITECTURE}: {PREFIX}{name} has one; leave it out, or build {PREFIX}{CUSTOM}"
            )
        architecture = PUBLIC.get(name)
    if problems:
        raise ConfigError(problems)
    if architecture is not None:
        return LanguageSource(architecture, precision)
    return LanguageSource(_of_folder(name), precision, Path(name))


def _custom(options: Mapping[str, Any], problems: list[str]) -> Architecture | None:
    known = {key.replace("_", "-"): key for key in Architecture.__struct_fields__}
    given = {known.get(key, key): value for key, value in options.items()}
    unknown = sorted(given.keys() - set(Architecture.__struct_fields__))
    problems += [
        f"$.model.options.{ARCHITECTURE}.{key}: no part of an architecture; its parts: {', '.join(known)}"
        for key in unknown
    ]
    if unknown:
        return None
    try:
        return msgspec.convert(given, Architecture)
    except (msgspec.ValidationError, ValueError) as error:
        problems.append(f"$.model.options.{ARCHITECTURE}: {error}")
        return None


def _of_folder(name: str) -> Architecture:
    if not (Path(name) / "config.json").is_file():
        known = ", ".join([*sorted(PUBLIC), CUSTOM])
        raise ConfigError(
            [
                f"$.model.build: {PREFIX}{name}: neither a known shape ({known}) nor a folder with a config.json; "
                "give one of them"
            ]
        )
    from coordinator.language.configuration import read_architecture

    found: Architecture = read_architecture(Path(name))
    return found
