"""The scenarios, in the order of playing; importing this package registers them."""

from importlib import import_module

from coordinator.conformance.findings import REGISTRY as SCENARIOS

__all__ = ["SCENARIOS"]

# Presence first: nothing else can be said of an agent that does not connect.
for _name in ("presence", "training", "orders", "downloads", "uploads", "refusals", "signatures", "messages"):
    import_module(f"{__name__}.{_name}")
