"""Registry of device training runtimes: name -> module. Nothing is imported before it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

from edge.contracts.errors import ConfigError

if TYPE_CHECKING:
    from edge.runtimes.base import Runtime

RUNTIMES: dict[str, str] = {
    "onnxruntime": "edge.runtimes.onnxruntime",
    "onnxruntime_training": "edge.runtimes.onnxruntime_training",
    "executorch": "edge.runtimes.executorch",
}


def max_threads(chosen: Runtime) -> int:
    """Most threads a step of the runtime uses; 0: as many as ordered."""
    return int(getattr(chosen, "MAX_THREADS", 0))


def runtime(name: str) -> Runtime:
    """The runtime registered as ``name``, its third-party package imported.

    Raises:
        ConfigError: an unknown name, or the package is not installed.
    """
    if name not in RUNTIMES:
        raise ConfigError([f"runtime: '{name}' is unknown, known are {', '.join(RUNTIMES)}"])
    try:
        return cast("Runtime", import_module(RUNTIMES[name]))
    except ImportError as error:
        raise ConfigError(
            [f"runtime: '{name}' cannot be imported ({error})"], hint=f"pip install 'apportion[{name}]'"
        ) from error
