"""What takes part in rounds beside the round itself: one file each, and one line in :data:`STAGES`, in their order."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coordinator.config.run_config import RunConfig
    from coordinator.rounds.federation import RoundStage

STAGES = (
    "coordinator.rounds.stages.screening:Screening",
    "coordinator.rounds.stages.silence:Silence",
    "coordinator.rounds.stages.site_policy:SitePolicies",
    "coordinator.rounds.stages.tagged_devices:TaggedDevices",
    "coordinator.rounds.stages.late_updates:LateUpdates",
    "coordinator.rounds.stages.secure_aggregation:SecureAggregation",
    "coordinator.rounds.stages.differential_privacy:DifferentialPrivacy",
    "coordinator.rounds.stages.cluster_models:ClusterModels",
    "coordinator.rounds.stages.control_variates:ControlVariates",
    "coordinator.rounds.stages.server_optimizer:OptimizesMean",
    "coordinator.rounds.stages.device_scores:DeviceScores",
    "coordinator.rounds.stages.traffic_account:TrafficAccount",
    "coordinator.rounds.stages.checkpoints:Checkpoints",
)
"""``module:class``, imported when a run is opened; a round asks them in this order."""


def stages_of(config: RunConfig) -> list[RoundStage]:
    """Those that the run asks for."""
    named = (target.partition(":") for target in STAGES)
    classes = [getattr(importlib.import_module(module), name) for module, _, name in named]
    return [stage() for stage in classes if stage.is_used(config)]
