"""Which runs' orders a device's trainer without Python can carry out, so that plans count on what it weighs.

A device that finds otherwise says so: it refuses an order that its Python trainer has no memory for.
"""

from __future__ import annotations

from collections.abc import Iterator

from coordinator.config.run_config import RunConfig
from coordinator.methods.method import Method
from coordinator.submodels.values import DeviceProgram


def takes_native_orders(config: RunConfig, method: Method) -> bool:
    """Whether nothing in the run's orders is beyond a trainer without Python (:mod:`edge.flat_orders`)."""
    is_plain = (
        config.updates.encoding == "raw"
        and config.updates.precision == "fp32"
        and not config.privacy.secure_aggregation
        and not config.personal.layers
        and not config.personal.fine_tune
        and not config.training.scaffold
    )
    return is_plain and all(map(_is_plain, _programs(config, method)))


def _programs(config: RunConfig, method: Method) -> Iterator[DeviceProgram]:
    """What devices are asked to do, at every level."""
    for level in method.levels():
        cut = method.cut_shape(level, round_index=0, device="", seed=config.federation.seed)
        yield method.program(cut)


def _is_plain(program: DeviceProgram) -> bool:
    """Whether its tensors travel whole, and its programs move whole ones."""
    return not (program.masked or program.sparse or program.variants or program.has_base or program.probe)
