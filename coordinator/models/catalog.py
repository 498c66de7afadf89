"""From a model's name to a torch module, its input and its number of classes.

``package.module:function`` builds the user's own module: the function (or ``nn.Module`` class) is called with
``input_shape`` and ``classes`` where its signature takes them, and with the run's model options. ``timm:NAME`` and the
like are :mod:`coordinator.models.libraries`'.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from coordinator.models import MODELS, ModelEntry
from coordinator.models.libraries import LIBRARIES, Library, library_of
from edge.contracts.errors import ApportionError, ConfigError
from edge.contracts.manifest import InputSpec

if TYPE_CHECKING:
    from torch import Tensor, nn


def model_entry(name: str) -> ModelEntry | None:
    """The registry line of ``name``; None for one of another package or of the user's, which have no line here.

    Raises:
        ConfigError: an unknown name; lists the known ones.
    """
    if name in MODELS:
        return MODELS[name]
    if ":" in name:
        return None
    known = ", ".join(sorted(MODELS))
    raise ConfigError(
        [
            f"$.model.build: unknown model '{name}'; known: {known}, one of a package as "
            f"{', '.join(f'{n}:NAME' for n in LIBRARIES)}, or your own as package.module:function"
        ]
    )


def build_model(
    name: str,
    *,
    input_shape: tuple[int, ...] | None = None,
    classes: int | None = None,
    seed: int = 0,
    vocabulary: int = 0,
    **options: Any,
) -> nn.Module:
    """The torch module ``name``, float32, in train mode, its initial weights a function of ``seed`` alone.

    The caller's random state is left as it was. The module's ``input_spec`` says what one example is, when known, its
    ``initial_seed`` the seed, for methods that add to its weights.

    Args:
        input_shape: shape of one example; the model's canonical one when None.
        classes: number of classes; the model's canonical one when None.
        vocabulary: of an own model that takes symbols.
        options: passed on to the builder; ``input_shape`` and ``classes`` go to own builders that take them.

    Raises:
        ConfigError: unknown name or option, an own builder that cannot be imported or gives no ``nn.Module``,
            an input the model has no shape for, whatever a builder raises.
    """
    import torch
    from torch import nn

    entry, library = model_entry(name), library_of(name)
    if library is not None:
        input_shape = input_spec(name, input_shape=input_shape, options=options).shape
        builder, arguments = _library_builder(library, name, input_shape, classes, options)
    else:
        builder = _import_builder(entry.target if entry else name)
    if entry is not None:
        input_shape = entry.input_shape if input_shape is None else tuple(input_shape)
        classes = entry.classes if classes is None else classes
    if library is None:
        arguments = _arguments(name, builder, input_shape, classes, options, own=entry is None)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            module = builder(**arguments)
        except ApportionError:
            raise
        except Exception as error:  # the builder may be anyone's
            given = ", ".join(f"{key}={value!r}"[:80] for key, value in arguments.items())
            raise ConfigError([f"$.model: {name}({given}) failed: {type(error).__name__}: {error}"]) from error
    if not isinstance(module, nn.Module):
        raise ConfigError([f"$.model.build: {name} gave a {type(module).__name__}, a torch.nn.Module expected"])
    if input_shape is not None:
        module.input_spec = input_spec(name, input_shape=input_shape, options=options, vocabulary=vocabulary)
    module.initial_seed = seed
    return module


def input_spec(
    name: str,
    *,
    input_shape: tuple[int, ...] | None = None,
    options: Mapping[str, Any] | None = None,
    vocabulary: int = 0,
) -> InputSpec:
    """The model's input without normalisation; for own models the layout follows from the number of dimensions.

    Args:
        options: of the model; what another package's model takes follows from them.
        vocabulary: of an own model that takes symbols.

    Raises:
        ConfigError: unknown name, an own model without ``input_shape``, or a package that is not installed.
    """
    entry, library = model_entry(name), library_of(name)
    if library is not None:
        return library.models().input_of(name.partition(":")[2], input_shape, options or {})
    if entry is None:
        if input_shape is None:
            raise ConfigError([f"$.model.input: own model {name} needs the shape of one example, e.g. [3, 32, 32]"])
        shape = tuple(input_shape)
        if vocabulary:
            return InputSpec(layout="tokens", shape=shape, dtype="int64", vocabulary=vocabulary)
        return InputSpec(layout="chw" if len(shape) == 3 else "features", shape=shape)
    shape = entry.input_shape if input_shape is None else tuple(input_shape)
    dtype: Literal["int64", "float32"] = "int64" if entry.layout == "tokens" else "float32"
    return InputSpec(layout=entry.layout, shape=shape, dtype=dtype, vocabulary=entry.vocabulary)


def example_input(name: str, *, batch: int = 2, input_shape: tuple[int, ...] | None = None, seed: int = 0) -> Tensor:
    """A batch the model accepts, [batch, *input_shape]: standard normal, or uniform symbols for ``tokens``."""
    import torch

    spec = input_spec(name, input_shape=input_shape)
    generator = torch.Generator().manual_seed(seed)
    if spec.layout == "tokens":
        return torch.randint(0, spec.vocabulary, (batch, *spec.shape), generator=generator)
    return torch.randn(batch, *spec.shape, generator=generator)


def _import_builder(target: str) -> Callable[..., Any]:
    module_name, _, function_name = target.partition(":")
    try:
        builder = getattr(importlib.import_module(module_name), function_name)
    except Exception as error:  # importing runs the user's own code
        why = f"{type(error).__name__}: {error}"
        raise ConfigError(
            [f"$.model.build: cannot import '{function_name}' from '{module_name}' ({why}); is it on PYTHONPATH?"]
        ) from error
    if not callable(builder):
        raise ConfigError([f"$.model.build: {target} is a {type(builder).__name__}, a function or class expected"])
    return builder


def _library_builder(
    library: Library, name: str, input_shape: tuple[int, ...], classes: int | None, options: Mapping[str, Any]
) -> tuple[Callable[..., Any], dict[str, Any]]:
    if not classes:
        raise ConfigError([f"$.model.classes: {name} needs its classes, a count or their names"])
    spec = input_spec(name, input_shape=input_shape, options=options)

    def builder(*, input: list[int], classes: int, **options: Any) -> nn.Module:
        return library.models().build(name.partition(":")[2], spec, classes, options)

    return builder, {"input": list(input_shape), "classes": classes, **options}


def _arguments(
    name: str,
    builder: Callable[..., Any],
    input_shape: tuple[int, ...] | None,
    classes: int | None,
    options: Mapping[str, Any],
    *,
    own: bool,
) -> dict[str, Any]:
    parameters = inspect.signature(builder).parameters
    takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    given = {"input_shape": input_shape, "classes": classes}
    # An own builder may fix its input and classes itself; ours always take both.
    arguments = {
        key: value
        for key, value in given.items()
        if not own or ((takes_all or key in parameters) and value is not None)
    }
    known = sorted(set(parameters) - given.keys())
    problems = [
        f"$.model.options.{key}: {name} has no such option; it takes {', '.join(known) or 'none'}"
        for key in options
        if not takes_all and key not in parameters
    ]
    if problems:
        raise ConfigError(problems)
    return {**arguments, **options}
