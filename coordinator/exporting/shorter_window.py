"""How long windows may be for a device that no level of a language model fits: a step's memory goes by their length."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from coordinator.exporting.cut_exporter import CutExporter, run_input_spec
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
    """Which window, half as long as the run's or a quarter or less, fits the device at the smallest level, in words;
    empty where none does, or the model is no language model."""
    if not is_language(config.model.build) or not profile.ceiling_bytes:
        return ""
    requests, level = Requests.of(config), method.levels()[-1]
    cut = method.cut_shape(level, round_index=0, device="", seed=config.federation.seed)
    length = run_input_spec(config).shape[0] // 2
    while length >= LEAST:
        model = msgspec.structs.replace(config.model, input=(length,))
        exporter = CutExporter(msgspec.structs.replace(config, model=model))
        for form in requests.forms:
            cost = exporter.written_cost(cut, method.program(cut), runtime, form)
            if cost is None:
                continue
            found = predict(
                profile, runtime, level, cost.predicted_peak_bytes, headroom=requests.headroom, form=form
            ).peak_bytes
            if found <= profile.ceiling_bytes:
                return f"$.model.input = [{length}] fits: {level.name}, {form.name}, {found / MB:.1f} MB"
        length //= 2
    return ""
