"""The run file that a configuration stands for, as text: what a run's directory keeps and other processes read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coordinator.config.aggregation import BUFFERED_KEYS, AggregationConfig
from coordinator.config.clusters import ClustersConfig
from coordinator.config.cohort import CohortConfig, LocalGroup
from coordinator.config.parameter_groups import ParameterGroupConfig
from coordinator.config.personal import PersonalConfig
from coordinator.config.privacy import PrivacyConfig
from coordinator.config.run_config import (
    BrokerConfig,
    DataConfig,
    EvaluationConfig,
    FederationConfig,
    ModelConfig,
    RunConfig,
    StoreConfig,
    TlsFiles,
)
from coordinator.config.server_optimizer import ServerOptimizerConfig
from coordinator.config.task import TaskConfig
from coordinator.config.tracking import OWN_KEYS, TrackingConfig
from coordinator.config.training import TrainingConfig


def canonical_toml(config: RunConfig) -> str:
    """The run file that reads as ``config``: every key spelled out, in the order of this page; equal for equal runs."""
    out: list[str] = []
    for name in config.__struct_fields__:
        section = getattr(config, name)
        if section in _UNASKED:
            continue
        listed = _LISTED.get(type(section), "")
        values = {key: getattr(section, key) for key in section.__struct_fields__ if key != listed}
        if name in ("method", "task"):
            values = {"name": section.name, **dict(sorted(section.options.items()))}
        if name == "runtime":
            values = {"name": values.pop("names"), **values}
        for key in _not_written(section):
            del values[key]
        out.append(f"[{_kebab(name)}]")
        # A method's own options keep their spelling; ours are kebab-case.
        out += [
            f"{key if name in ('method', 'task') else _kebab(key)} = {_toml(value)}" for key, value in values.items()
        ]
        out.append("")
        for group in getattr(section, listed) if listed else ():
            out.append(f"[[{_kebab(name)}.{listed}]]")
            keys = [key for key in group.__struct_fields__ if key not in _not_written(group)]
            out += [f"{_kebab(key)} = {_toml(getattr(group, key))}" for key in keys]
            out.append("")
    return "\n".join(out)


_UNASKED = (ServerOptimizerConfig(), PersonalConfig(), ClustersConfig(), TaskConfig(), TrackingConfig())
"""Tables that are left out where nobody asked for them: runs of earlier releases keep their text."""

_LISTED: dict[type, str] = {CohortConfig: "local", TrainingConfig: "groups"}
"""The keys that are arrays of tables."""


def _not_written(section: Any) -> list[str]:
    """Keys whose value stands for "not given", which a file says by leaving them out."""
    if isinstance(section, FederationConfig):
        unused = [] if section.keep_best else ["metric", "keep_best"]
        return unused + [key for key in ("patience", "keep_every") if not getattr(section, key)]
    if isinstance(section, ModelConfig):
        return [key for key in ("classes", "vocabulary", "weights_map") if not getattr(section, key)]
    if isinstance(section, TrainingConfig):
        unused = ["epochs" if section.steps else "steps"]
        later = ("proximal_mu", "scaffold", "lr_warm_up", "cached_features")
        unused += ["frozen_norm"] if section.frozen_norm == "batch" else []
        return unused + [key for key in later if not getattr(section, key)]
    if isinstance(section, ParameterGroupConfig):
        return ["weight_decay"] if section.weight_decay is None else []
    if isinstance(section, DataConfig):
        unused = ["alpha"] if not section.partition.startswith("dirichlet") else []
        return unused if section.devices else [*unused, "devices"]
    if isinstance(section, EvaluationConfig):
        unused = [] if section.devices else ["devices", "devices_least"]
        return unused if section.choices else [*unused, "choices"]
    if isinstance(section, PersonalConfig):
        return [key for key in ("layers", "fine_tune") if not getattr(section, key)]
    if isinstance(section, AggregationConfig):
        return [] if section.mode == "buffered" else [key.replace("-", "_") for key in BUFFERED_KEYS]
    if isinstance(section, PrivacyConfig):
        return [] if section.least_honest else ["least_honest"]
    if isinstance(section, StoreConfig):
        return [key for key in ("blobs", "ledger") if not getattr(section, key)] + ["shards"] * (section.shards == 1)
    if isinstance(section, LocalGroup):
        return [key for key in ("runtime", "tags") if not getattr(section, key)]
    if isinstance(section, CohortConfig):
        return [] if section.tags else ["tags"]
    if isinstance(section, TrackingConfig):
        # Of a tracker that is not named, and what stands for a place in the run's directory.
        unnamed = [key.replace("-", "_") for key, tracker in OWN_KEYS.items() if tracker not in section.to]
        empty = [key for key in section.__struct_fields__ if getattr(section, key) in ("", ())]
        return list(dict.fromkeys([*unnamed, *empty]))
    if isinstance(section, BrokerConfig):
        spared = ("identity", "bulk", "web", "web_certificate", "web_key", "web_socket", "folder")
        return [key for key in spared if not getattr(section, key)]
    return []


def _kebab(key: str) -> str:
    return key.replace("_", "-")


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, TlsFiles):
        value = {key: getattr(value, key) for key in value.__struct_fields__}
    if isinstance(value, Mapping):
        pairs = (f"{_quoted(str(key))} = {_toml(value[key])}" for key in sorted(value))
        return "{ " + ", ".join(pairs) + " }" if value else "{}"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_toml(entry) for entry in value) + "]"
    raise TypeError(f"no TOML form of {type(value).__name__} in a run file")


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped) + '"'
