"""Which methods aggregate a mean over one cut that all devices share: the only ones a sum of updates is enough for.

Noise is measured against what one device can move in a sum, and a sum of masked updates hides what each of them is.
Both need an aggregate that one update, the mean of all, determines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coordinator.configuration import RunConfig
    from coordinator.methods.method import DeviceProgram

_FACTORS = "its aggregate is a mean of products of factors, which the mean of the factors does not determine"
_WIDTHS = "its devices hold different parts of the model and every entry has its own count"
_TEACHERS = "it distils from the devices' models one by one"
_SCORES = "devices send scores or losses of their data beside the weights, and it prunes by them"

ONE_CUT = (
    "adapter",
    "fedavg",
    "iterative_magnitude",
    "lottery_ticket",
    "prefix",
    "prompt",
    "slora",
    "small_model",
    "snip",
    "synflow",
)
"""Methods whose devices share one cut and whose aggregate is the weighted mean of what they send."""

OTHERS = {
    "ds_fl": _TEACHERS,
    "fed_et": _TEACHERS,
    "federated_dropout": _WIDTHS,
    "feddf": _TEACHERS,
    "fedhm": _FACTORS,
    "fedlora": _FACTORS,
    "fedrolex": _WIDTHS,
    "fjord": _WIDTHS,
    "heterofl": _WIDTHS,
    "online_sparsity": _SCORES,
    "origdrop": _WIDTHS,
    "orthdrop": _WIDTHS,
    "prism": _WIDTHS,
    "prunefl": _SCORES,
    "slt": _WIDTHS,
    "split_mix": _WIDTHS,
}
"""Every other method, with the reason."""


def refusal_of(method: str) -> str:
    """Why a mean over one cut does not stand for ``method``'s aggregate; empty when it does."""
    if method in ONE_CUT:
        return ""
    return OTHERS.get(method, "whether its aggregate is a mean over one shared cut is not known")


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
    return is_plain and not refusal_of(config.method.name)
