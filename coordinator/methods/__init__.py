"""Federated methods by name. A new method is one new file here and one line in :data:`METHODS`."""

from __future__ import annotations

from coordinator.methods.method import DeviceProgram, Level, Method, State, Submodel, Update
from coordinator.methods.options import build_method

__all__ = ["METHODS", "DeviceProgram", "Level", "Method", "State", "Submodel", "Update", "build_method"]

METHODS: dict[str, str] = {
    "fedavg": "coordinator.methods.fedavg:FedAvg",
    "fedhm": "coordinator.methods.fedhm:FedHM",
    "fedlora": "coordinator.methods.fedlora:FedLoRA",
    "iterative_magnitude": "coordinator.methods.iterative_magnitude:IterativeMagnitude",
    "lottery_ticket": "coordinator.methods.lottery_ticket:LotteryTicket",
    "prunefl": "coordinator.methods.prunefl:PruneFL",
    "snip": "coordinator.methods.snip:Snip",
    "synflow": "coordinator.methods.synflow:SynFlow",
}
"""Name -> ``module:class``, imported when used."""
