"""The small model: every device trains the one network that fits the smallest of them. What width scaling must beat.

Source: the baseline of SLT (NeurIPS 2023), section 4.
"""

from __future__ import annotations

from coordinator.methods.width_method import WidthMethod


class SmallModel(WidthMethod):
    """Options, in kebab case:

    - ``levels``: width ratios of the devices, as for the other methods; all train at the smallest. By default 1/4.
    - ``rounding``: ``floor`` (SLT), ``ceil`` or ``round``; ``concatenation``: ``each`` or ``cumulative``.
    - ``loss``, ``norm``: as FedAvg's.
    - ``weight-by-examples``: weigh devices by ``num_examples``; true, as FedAvg does.
    """

    name = "small_model"
    needs_each_update = ""
    default_levels = (0.25,)
    rounding = "floor"
    by_examples = True
    shrinks = True

    def used_ratios(self, ratios: tuple[float, ...]) -> tuple[float, ...]:
        """The smallest alone."""
        return (min(ratios),)
