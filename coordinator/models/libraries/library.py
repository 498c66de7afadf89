"""One line of the packages' registry."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

from edge.contracts.errors import ConfigError
from edge.contracts.manifest import InputSpec

if TYPE_CHECKING:
    from torch import nn


class LibraryModels(Protocol):
    """What the file of a package has. ``name`` is what follows the colon."""

    def input_of(self, name: str, shape: tuple[int, ...] | None, options: Mapping[str, Any]) -> InputSpec:
        """One example of the model; its own one when ``shape`` is None.

        Raises:
            ConfigError: an unknown name or option, or a shape the model cannot take.
        """
        ...

    def build(self, name: str, spec: InputSpec, classes: int, options: Mapping[str, Any]) -> nn.Module:
        """The module with random weights, [B, *spec.shape] -> [B, classes].

        Raises:
            ConfigError: as :meth:`input_of`.
        """
        ...


@dataclass(frozen=True)
class Library:
    """How a package's models are built.

    Attributes:
        package: as it is installed and imported; empty: the models are this project's.
        module: with the functions of :class:`LibraryModels`; imported when first used.
        example: a name, for messages.
    """

    package: str
    module: str
    example: str

    def models(self) -> LibraryModels:
        """The functions of :attr:`module`."""
        return cast("LibraryModels", importlib.import_module(self.module))


def imported(package: str) -> Any:
    """The package, ready to build models.

    Raises:
        ConfigError: it is not installed, or does not fit what is.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        missing = (error.name or package).partition(".")[0]
        raise ConfigError(
            [f"$.model.build: {package} models need {missing}, which is not installed here"],
            hint=f"pip install {missing}",
        ) from error
    except Exception as error:  # packages check each other's versions with whatever they like
        why = f"{type(error).__name__}: {error}"
        raise ConfigError(
            [f"$.model.build: {package} cannot be imported ({why}); install versions that fit"]
        ) from error


def refuse_options(package: str, options: Mapping[str, Any], refused: Mapping[str, str]) -> None:
    """Check that ``options`` ask for nothing in ``refused`` (key -> why).

    Raises:
        ConfigError: all that do.
    """
    problems = [f"$.model.options.{key}: {package}: {refused[key]}" for key in options if key in refused]
    if problems:
        raise ConfigError(problems)


NOTHING_FETCHED = "weights are not fetched; give [model] weights, a safetensors file"
