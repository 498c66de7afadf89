"""The scenarios, in the order of playing; importing this package registers them."""

from importlib import import_module

from coordinator.conformance.registry import REGISTRY as SCENARIOS

__all__ = ["SCENARIOS"]

_FILES = ("presence", "training", "orders", "downloads", "uploads", "refusals", "signatures", "messages")
_LOADED = [import_module(f"{__name__}.{name}") for name in _FILES]
