"""Federated methods by name. A new method is one new file here and one line in :data:`METHODS`.

Those of users are found without either: :mod:`coordinator.methods.own`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from coordinator.methods.language import LANGUAGE_METHODS, language_method_class
from coordinator.methods.method import Method
from coordinator.methods.own import installed_methods, is_import_path, own_class
from coordinator.submodels.values import DeviceProgram, Level, State, Submodel, Update
from edge.contracts.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

__all__ = [
    "LANGUAGE_METHODS",
    "METHODS",
    "DeviceProgram",
    "Level",
    "Method",
    "State",
    "Submodel",
    "Update",
    "build_method",
]

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
    "sparse_update": "coordinator.methods.sparse_update:SparseUpdate",
    "split_mix": "coordinator.methods.split_mix:SplitMix",
    "synflow": "coordinator.methods.synflow:SynFlow",
}
"""Name -> ``module:class``, imported when used."""


def method_class(name: str) -> type[Method]:
    """The class of the method ``name``: one of :data:`METHODS`, an installed one, or ``package.module:Class``.

    Raises:
        ConfigError: an unknown method (lists the known ones), or a class that is no method.
    """
    if target := METHODS.get(name) or LANGUAGE_METHODS.get(name):
        module_name, _, class_name = target.partition(":")
        found: type[Method] = getattr(importlib.import_module(module_name), class_name)
        return found
    if target := name if is_import_path(name) else installed_methods().get(name):
        own: type[Method] = own_class(target)
        return own
    known = ", ".join(sorted({*METHODS, *LANGUAGE_METHODS, *installed_methods()}))
    raise ConfigError([f"$.method.name: unknown method '{name}'; known: {known}, or your own as package.module:Class"])


def build_method(name: str, module: nn.Module, options: Mapping[str, Any]) -> Method:
    """The method ``name`` for ``module``, whose kind decides its form. ``options`` has kebab-case keys, without a name.

    Raises:
        ConfigError: an unknown method (lists the known ones), unknown or impossible options, a module to which the
            options do not apply.
    """
    from export.language.causal_model import CausalModel

    if isinstance(module, CausalModel) and name in METHODS:
        made: Method = language_method_class(name)(module, options)
        return made
    if name in LANGUAGE_METHODS and name not in METHODS and not isinstance(module, CausalModel):
        raise ConfigError(
            [f'$.method.name: {name} is for language models, [model] build = "language:NAME"; use fedlora']
        )
    return method_class(name)(module, options)
