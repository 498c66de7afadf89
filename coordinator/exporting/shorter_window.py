"""How long windows may be for a device that no level of a language model fits: a step's memory goes by their length."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from coordinator.exporting.cut_exporter import CutExporter, run_input_spec
from coordinator.exporting.model_form import base_choices
from coordinator.language.source import is_language
from coordinator.planning.prediction import MB, predict
from coordinator.planning.requests import Requests

if TYPE_CHECKING:
    from coordinator.config.run_config import RunConfig
    from coordinator.methods.method import Method
    from profiles.device import DeviceProfile

LEAST = 8
"""Symbols of the shortest window that is suggested."""


def shorter_window(config: RunConfig, method: Method, profile: DeviceProfile, runtime: str) -> str:
    """Which window, half as long as the shortest of the run's or a quarter or less, fits the device at the smallest
    level, in words; empty where none does, or the model is no language model."""
    if not is_language(config.model.build) or not profile.ceiling_bytes:
        return ""
    requests, level, exporter = Requests.of(config, base_choices(config)), method.levels()[-1], CutExporter(config)
    cut = method.cut_shape(level, round_index=0, device="", seed=config.federation.seed)
    length = min((*run_input_spec(config).shape, *config.planner.windows))
    while length % 2 == 0 and length >= 2 * LEAST:
        length //= 2
        for form in requests.forms:
            cost = exporter.written_cost(cut, method.program(cut), runtime, replace(form, window=length))
            if cost is None:
                continue
            found = predict(
                profile, runtime, level, cost.predicted_peak_bytes, headroom=requests.headroom, form=form
            ).peak_bytes
            if found <= profile.ceiling_bytes:
                windows = ", ".join(map(str, (*config.planner.windows, length)))
                return f"$.planner.windows = [{windows}] fits: {level.name}, {form.name}, {found / MB:.1f} MB"
    return ""
