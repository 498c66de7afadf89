"""Registry of device training runtimes, a folder each: its package holds its traits, its ``session`` the runtime.

No runtime's own package is imported before it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

from edge.contracts.errors import ConfigError
from edge.runtimes.traits import RuntimeTraits

if TYPE_CHECKING:
    from edge.runtimes.base import Runtime

KNOWN: dict[str, str] = {
    "onnxruntime": "edge.runtimes.onnxruntime",
    "onnxruntime_web": "edge.runtimes.onnxruntime_web",
    "onnxruntime_training": "edge.runtimes.onnxruntime_training",
    "executorch": "edge.runtimes.executorch",
}
"""All of them: name, which is the folder's -> package."""


def traits_of(name: str) -> RuntimeTraits:
    """What is known of the runtime ``name``, which may be one that another agent brings."""
    return import_module(KNOWN[name]).TRAITS if name in KNOWN else RuntimeTraits()


RUNTIMES = {name: package for name, package in KNOWN.items() if not traits_of(name).is_in_browser}
"""Those that trainers of this project load."""

INSTALLABLE = tuple(name for name in RUNTIMES if traits_of(name).has_wheels)
"""Those whose trainers can be installed on a host of any processor."""

DEFAULT = next(iter(RUNTIMES))
"""The runtime where nothing names one."""

BROWSER = next(name for name in KNOWN if name not in RUNTIMES)
"""The runtime of the page that phones join with."""


def runtime(name: str) -> Runtime:
    """The runtime registered as ``name``, its third-party package imported.

    Raises:
        ConfigError: an unknown name, or the package is not installed.
    """
    if name not in RUNTIMES:
        raise ConfigError([f"runtime: '{name}' is unknown, known are {', '.join(RUNTIMES)}"])
    try:
        return cast("Runtime", import_module(f"{RUNTIMES[name]}.session"))
    except ImportError as error:
        raise ConfigError(
            [f"runtime: '{name}' cannot be imported ({error})"], hint=f"pip install 'apportion[{name}]'"
        ) from error
