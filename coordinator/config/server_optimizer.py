"""``[server-optimizer]`` of a run file: what the server does with the step that the devices' mean is."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from coordinator.config.table_reader import TableReader

_DEFAULTS = {"fedavgm": (1.0, 0.9), "fedadagrad": (0.1, 0.0)}
"""Learning rate and beta1 where the file has none; of all others ``_ADAPTIVE``."""
_ADAPTIVE = (0.1, 0.9)


class ServerOptimizerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """``[server-optimizer]``.

    Attributes:
        name: one of ``coordinator.server_optimizers``; empty = none, the devices' mean is the next model. Example:
            ``"fedadam"``.
        lr: eta, the server's learning rate; 1 for ``fedavgm``, 0.1 for the others. Example: ``0.1``.
        beta1: how much of the earlier mean step is kept; 0.9, for ``fedadagrad`` 0. Example: ``0.9``.
        beta2: how much of its earlier square is kept, for ``fedadam`` and ``fedyogi``. Example: ``0.99``.
        tau: added to the root of the mean square, of all but ``fedavgm``; the mean square begins with its square.
            Example: ``0.001``.
    """

    name: str = ""
    lr: float = 0.0
    beta1: float = 0.0
    beta2: float = 0.99
    tau: float = 1e-3


def read_server_optimizer(table: TableReader, known: Iterable[str]) -> ServerOptimizerConfig:
    """The table's values; ``known`` are the names of optimizers."""
    default = ServerOptimizerConfig()
    name = table.choice("name", known, "")
    lr, beta1 = _DEFAULTS.get(name, _ADAPTIVE) if name else (default.lr, default.beta1)
    read = ServerOptimizerConfig(
        name=name,
        lr=table.number("lr", lr, low=0.0, high=1000.0, above_low=True),
        beta1=table.number("beta1", beta1, low=0.0, high=0.9999),
        beta2=table.number("beta2", default.beta2, low=0.0, high=0.999999),
        tau=table.number("tau", default.tau, low=0.0, high=1.0, above_low=True),
    )
    if not name:
        for key in ("lr", "beta1", "beta2", "tau"):
            if table.has(key):
                table.problem(key, "belongs to a server optimizer; give its name, too")
    if name in ("fedavgm", "fedadagrad") and table.has("beta2"):
        table.problem("beta2", f"{name} has none; it belongs to fedadam and fedyogi")
    if name == "fedavgm" and table.has("tau"):
        table.problem("tau", "fedavgm has none; it belongs to fedadagrad, fedadam and fedyogi")
    return read
