"""Federated methods by name. A new method is one new file here and one line in :data:`METHODS`."""

from __future__ import annotations

from coordinator.methods.method import DeviceProgram, Level, Method, State, Submodel, Update
from coordinator.methods.options import build_method

__all__ = ["METHODS", "DeviceProgram", "Level", "Method", "State", "Submodel", "Update", "build_method"]

METHODS: dict[str, str] = {
    "adapter": "coordinator.methods.adapter:Adapter",
    "ds_fl": "coordinator.methods.ds_fl:DSFL",
    "fed_et": "coordinator.methods.fed_et:FedET",
    "fedavg": "coordinator.methods.fedavg:FedAvg",
    "feddf": "coordinator.methods.feddf:FedDF",
    "federated_dropout": "coordinator.methods.federated_dropout:FederatedDropout",
    "fedhm": "coordinator.methods.fedhm:FedHM",
    "fedlora": "coordinator.methods.fedlora:FedLoRA",
    "fedrolex": "coordinator.methods.fedrolex:FedRolex",
    "fjord": "coordinator.methods.fjord:FjORD",
    "heterofl": "coordinator.methods.heterofl:HeteroFL",
    "iterative_magnitude": "coordinator.methods.iterative_magnitude:IterativeMagnitude",
    "lottery_ticket": "coordinator.methods.lottery_ticket:LotteryTicket",
    "online_sparsity": "coordinator.methods.online_sparsity:OnlineSparsity",
    "origdrop": "coordinator.methods.origdrop:OrigDrop",
    "orthdrop": "coordinator.methods.orthdrop:OrthDrop",
    "prefix": "coordinator.methods.prefix:Prefix",
    "prism": "coordinator.methods.prism:PriSM",
    "prompt": "coordinator.methods.prompt:Prompt",
    "prunefl": "coordinator.methods.prunefl:PruneFL",
    "small_model": "coordinator.methods.small_model:SmallModel",
    "slora": "coordinator.methods.slora:SLoRA",
    "slt": "coordinator.methods.slt:SLT",
    "snip": "coordinator.methods.snip:Snip",
    "split_mix": "coordinator.methods.split_mix:SplitMix",
    "synflow": "coordinator.methods.synflow:SynFlow",
}
"""Name -> ``module:class``, imported when used."""
