"""Methods of the user's own, without a fork.

They are named by import path (``package.module:Class``), or as an installed package names its class in the entry point
group ``apportion.methods``.

A class found here is looked over before it is used: it has to be a class with every method and trait of
:class:`coordinator.methods.method.Method`. What it computes is for ``apportion conformance --method`` to try.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
from typing import Any

from edge.contracts.errors import ConfigError

GROUP = "apportion.methods"
"""The entry point group."""
TRAITS = ("name", "synchronous_only", "needs_each_update")
"""Class attributes of every method, all text."""
CALLED = ("init", "levels", "cut_shape", "program", "cut", "aggregate", "refresh", "eval_models")
"""What a round calls of every method."""


def is_import_path(name: str) -> bool:
    """Whether ``name`` names code by where it is; such a name in somebody else's file is not followed unasked."""
    return ":" in name


def installed_methods() -> dict[str, str]:
    """Name -> ``module:Class`` of each method that an installed package offers, in the order of names.

    Raises:
        ConfigError: two packages offer different classes by one name.
    """
    found: dict[str, str] = {}
    for entry in sorted(importlib.metadata.entry_points(group=GROUP), key=lambda entry: entry.name):
        if found.setdefault(entry.name, entry.value) != entry.value:
            raise ConfigError(
                [
                    f"$.method.name: two installed packages offer a method '{entry.name}', {found[entry.name]} and "
                    f"{entry.value}; name the one that is meant by its path, or uninstall the other"
                ]
            )
    return found


def own_class(target: str) -> type[Any]:
    """The class at ``target``, ``package.module:Class``. Importing it runs its module.

    Raises:
        ConfigError: it cannot be imported, is no class, or lacks something that every method has.
    """
    module_name, _, class_name = target.partition(":")
    try:
        found: Any = getattr(importlib.import_module(module_name), class_name)
    except Exception as error:  # importing runs the user's own code
        why = f"{type(error).__name__}: {error}"
        raise ConfigError(
            [f"$.method.name: cannot import '{class_name}' from '{module_name}' ({why}); is it on PYTHONPATH?"]
        ) from error
    if not inspect.isclass(found):
        raise ConfigError([f"$.method.name: {target} is a {type(found).__name__}, a class expected"])
    lacking = [name for name in CALLED if not callable(getattr(found, name, None))]
    lacking += [name for name in TRAITS if not isinstance(getattr(found, name, None), str)]
    if lacking:
        raise ConfigError(
            [
                f"$.method.name: {target} has no {', '.join(lacking)}; a method has {', '.join(CALLED)} and, as class "
                f"attributes with text, {', '.join(TRAITS)} (docs/own-methods.md)"
            ]
        )
    return found
