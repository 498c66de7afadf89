"""The class of a task by its name."""

from __future__ import annotations

import importlib
import inspect

from edge.contracts.errors import ConfigError
from export.tasks import TASKS


def task_class(name: str) -> type:
    """The class of the task called ``name``, one of :data:`export.tasks.TASKS` or ``package.module:Class``.

    Raises:
        ConfigError: there is none; the message lists the known ones.
    """
    if name not in TASKS and ":" not in name:
        raise ConfigError(
            [f"$.task.name: unknown task '{name}'; known: classification, {', '.join(TASKS)}, package.module:Class"]
        )
    module_name, _, attribute = TASKS.get(name, name).partition(":")
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except Exception as error:  # importing runs the user's own code
        why = f"{type(error).__name__}: {error}"
        raise ConfigError([f"$.task.name: cannot import '{name}' ({why}); is it on PYTHONPATH?"]) from error
    if not inspect.isclass(found):
        raise ConfigError([f"$.task.name: {name} is a {type(found).__name__}, a class with training_step expected"])
    return found
