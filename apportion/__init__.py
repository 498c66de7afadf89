"""Federated training on devices, from Python: what the ``apportion`` command does, as functions and values.

Importing this loads nothing else; each name is imported when it is first used. Which names are stable, and how one is
given up: docs/api.md. Their types are in ``__init__.pyi``.
"""

from __future__ import annotations

import importlib
from typing import Any

NAMES: dict[str, str] = {
    "ApportionError": "edge.contracts.errors:ApportionError",
    "ConfigError": "edge.contracts.errors:ConfigError",
    "BatchTensor": "export.training_step:BatchTensor",
    "Data": "apportion.run_tables:Data",
    "Dataset": "coordinator.data.datasets:Dataset",
    "Federation": "apportion.federation:Federation",
    "History": "apportion.history:History",
    "LocalDevices": "coordinator.config.cohort:LocalGroup",
    "InferenceManifest": "edge.contracts.inference:InferenceManifest",
    "Predictor": "edge.inference.predictor:Predictor",
    "Method": "apportion.run_tables:Method",
    "Rows": "apportion.rows:Rows",
    "Task": "apportion.run_tables:Task",
    "Train": "coordinator.config.training:TrainingConfig",
    "bench": "apportion.jobs:bench",
    "deploy": "apportion.jobs:deploy",
    "doctor": "apportion.jobs:doctor",
    "export": "apportion.jobs:export",
    "load": "apportion.history:load",
    "method_class": "apportion.jobs:method_class",
    "methods": "apportion.jobs:methods",
    "models": "apportion.jobs:models",
    "plan": "apportion.jobs:plan",
    "predictor_of": "edge.inference.release:predictor_of",
    "resume": "apportion.jobs:resume",
    "run": "apportion.jobs:run",
    "simulate": "apportion.jobs:simulate",
}
"""Public name -> ``module:name``. All of them are stable; others in this package are not."""

__all__ = [
    "ApportionError",
    "BatchTensor",
    "ConfigError",
    "Data",
    "Dataset",
    "Federation",
    "History",
    "InferenceManifest",
    "LocalDevices",
    "Method",
    "Predictor",
    "Rows",
    "Task",
    "Train",
    "bench",
    "deploy",
    "doctor",
    "export",
    "load",
    "method_class",
    "methods",
    "models",
    "plan",
    "predictor_of",
    "resume",
    "run",
    "simulate",
]


def __getattr__(name: str) -> Any:
    if name not in NAMES:
        raise AttributeError(f"module 'apportion' has no name '{name}'; it has {', '.join(sorted(NAMES))}")
    module, _, attribute = NAMES[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted(NAMES)
