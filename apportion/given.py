"""Objects that a program hands over: modules, functions and arrays that have no import path.

A run file names its model and data as ``package.module:function``. An object of a notebook has no such name, so it is
kept here under one, ``apportion.given:NAME``, and whoever imports that name in this process finds it. The name of a
module or of arrays is made from what they hold: the same ones, handed over again in another process, have it too, and a
run goes on there.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from torch import nn

PREFIX = "apportion.given:"
_MOST_NAMED = 40
_kept: dict[str, Any] = {}


def __getattr__(name: str) -> Any:
    try:
        return _kept[name]
    except KeyError:
        raise AttributeError(
            f"'{name}' is an object that another Python process was given; build the same Federation in this one "
            "first, or move what it is made of into a module that can be imported"
        ) from None


def is_given(target: str) -> bool:
    """Whether ``target`` names an object that is here, and in no other process."""
    return target.startswith(PREFIX)


def path_of(thing: object) -> str:
    """``package.module:name`` when another process can import ``thing`` so; empty for what is of a notebook, a script
    or the inside of a function."""
    module, name = getattr(thing, "__module__", None) or "", getattr(thing, "__qualname__", "")
    if module in ("", "__main__", "builtins") or not name.isidentifier():
        return ""
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ImportError:
        return ""
    return f"{module}:{name}" if found is thing else ""


def keep_function(function: Callable[..., Any]) -> str:
    """The name of a function or class from now on: its import path where it has one."""
    if path := path_of(function):
        return path
    try:
        text = inspect.getsource(function)
    except (OSError, TypeError):
        text = repr(getattr(getattr(function, "__code__", function), "co_code", ""))
    label = f"{_word(getattr(function, '__name__', 'function'))}_{_digest(text.encode())}"
    name, count = label, 1
    # Two functions of one text may differ in what they close over.
    while _kept.get(name, function) is not function:
        count += 1
        name = f"{label}_{count}"
    _kept[name] = function
    return PREFIX + name


def keep_module(module: nn.Module) -> str:
    """The name of a builder that gives a copy of ``module`` as it is now, with its weights."""
    from copy import deepcopy

    parts = [type(module).__qualname__.encode(), repr(module).encode()]
    for name, value in sorted(module.state_dict().items()):
        parts += [name.encode(), value.detach().cpu().numpy().tobytes()]
    name = f"{_word(type(module).__name__)}_{_digest(*parts)}"
    if name not in _kept:
        # Parameters alone: a module that was trained before may hold gradients, and nobody needs those.
        frozen = deepcopy(module)
        frozen.zero_grad(set_to_none=True)
        _kept[name] = lambda: deepcopy(frozen)
    return PREFIX + name


def keep_arrays(load: Callable[..., Any], *arrays: np.ndarray) -> str:
    """The name of ``load`` from now on, made from the ``arrays`` that it gives."""
    import numpy as np

    parts: list[bytes | memoryview] = []
    for array in arrays:
        whole = np.ascontiguousarray(array)
        if array.dtype.names is not None:  # records
            parts += [f"{array.dtype.descr}{array.shape}".encode(), whole.tobytes()]
        else:
            parts += [f"{array.dtype.str}{array.shape}".encode(), whole.view(np.uint8).data]
    name = f"arrays_{_digest(*parts)}"
    _kept[name] = load
    return PREFIX + name


def _digest(*parts: bytes | memoryview) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()[:12]


def _word(text: str) -> str:
    return re.sub(r"\W", "", text)[:_MOST_NAMED] or "object"
