"""``[task]`` of a run file: what devices train a model for."""

from __future__ import annotations

from typing import Any

import msgspec

from coordinator.config.table_reader import TableReader
from export.tasks import CLASSIFICATION, TASKS


class TaskConfig(msgspec.Struct, frozen=True, kw_only=True):
    """``[task]``.

    Attributes:
        name: one of ``export.tasks.TASKS``, ``package.module:Class``, or ``module`` for a model that brings its own
            ``training_step``; empty, or ``classification``: one class for each example. Example: ``"regression"``.
        options: every other key of the table, handed to the task's class. Example: ``{ loss = "huber" }``.
    """

    name: str = ""
    options: dict[str, Any] = {}


def read_task(table: TableReader) -> TaskConfig:
    """The table's values; reading imports no code of the task's."""
    name = table.choice("name", [CLASSIFICATION, *TASKS], CLASSIFICATION, own="Class")
    options = {key.replace("-", "_"): value for key, value in table.rest().items()}
    return TaskConfig(name="" if name == CLASSIFICATION else name, options=options)
