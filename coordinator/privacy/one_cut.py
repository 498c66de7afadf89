"""Which methods aggregate a mean over one cut that all devices share: the only ones a sum of updates is enough for.

Noise is measured against what one device can move in a sum, and a sum of masked updates hides what each of them is.
Both need an aggregate that one update, the mean of all, determines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.methods import METHODS, method_class
from coordinator.methods.language.mixed_additions import mixes_additions

if TYPE_CHECKING:
    from coordinator.config.run_config import RunConfig
    from coordinator.submodels.values import DeviceProgram


def refusal_of(method: str) -> str:
    """Why a mean over one cut does not stand for ``method``'s aggregate; empty when it does."""
    return method_class(method).needs_each_update


def summable_methods() -> list[str]:
    """The methods whose devices share one cut and whose aggregate is the weighted mean of what they send."""
    return [name for name in METHODS if not refusal_of(name)]


def is_summable(config: RunConfig, program: DeviceProgram) -> bool:
    """Whether the mean of several devices' updates, weighted by examples, may be counted in their place.

    It may not where something is judged, clipped, masked or weighed of each device, nor where devices send more than
    trained tensors: sums of squared gradients, losses, the classes they have.
    """
    defences, privacy = config.defences, config.privacy
    is_plain_mean = config.aggregation.rule == "mean" and config.method.options.get("weight-by-examples") is not False
    is_judged = bool(defences.quarantine_factor or defences.examples_factor or privacy.clip_norm)
    sends_more = bool(program.accumulators or program.probe or program.reports_labels)
    is_plain = is_plain_mean and not is_judged and not sends_more and not privacy.secure_aggregation
    is_one_cut = not mixes_additions(config.method.name, config.method.options)
    return is_plain and is_one_cut and not refusal_of(config.method.name)
