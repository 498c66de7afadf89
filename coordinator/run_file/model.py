"""``[model]`` of the run file, with what its library, its files and its name maps allow."""

from __future__ import annotations

from pathlib import Path

from coordinator.config.run_config import ModelConfig
from coordinator.config.table_reader import TableReader, absolute
from coordinator.language.source import PREFIX, is_language
from edge.contracts.errors import ConfigError


def read_model(table: TableReader, folder: Path, *, has_task: bool) -> ModelConfig:
    """The table's model; relative paths are relative to ``folder``. Problems go to the table.

    Args:
        has_task: a ``[task]`` says what outputs mean, so classes may be left out, or be one.
    """
    from coordinator.models import MODELS
    from coordinator.models.libraries import is_own, library_of
    from coordinator.models.libraries.config_file import with_config_file

    named = str(table.raw("build", ""))
    build = table.text("build") if library_of(named) else table.choice("build", MODELS, own="function")
    shape = table.list_of("input", int, "whole numbers", ())
    if any(size < 1 for size in shape):
        table.problem("input", f"sizes of {list(shape)} must be at least 1")
    least = 1 if has_task else 2  # of a task they are what the model gives: outputs, a vocabulary
    names: tuple[str, ...]
    if isinstance(table.raw("classes"), list):
        names = table.list_of("classes", str, "class names", ())
        if len(set(names)) != len(names) or len(names) < least:
            table.problem(
                "classes",
                f"at least {'two' if least == 2 else 'one'} different names expected, {list(names)[:5]} found",
            )
    elif table.has("classes"):
        names = tuple(str(index) for index in range(table.integer("classes", low=least, high=1_000_000)))
    else:
        names = ()
    if is_own(build) and not shape:
        table.problem("input", "is missing; your own model needs the shape of one example, e.g. [3, 32, 32]")
    if ":" in build and not names and not has_task:
        table.problem("classes", f"is missing; {build} needs a number of classes or their names")
    vocabulary = table.integer("vocabulary", 0, low=1, high=10_000_000)
    if vocabulary and not is_own(build):
        table.problem("vocabulary", f"belongs to a model of your own; {build} says itself what it takes")
    options = table.table("options").rest()
    try:
        build, options = with_config_file(build, options, folder)
    except ConfigError as error:
        table.problems.extend(error.problems)
    if is_language(build) and (folder / build.removeprefix(PREFIX)).is_dir():
        build = PREFIX + absolute(build.removeprefix(PREFIX), folder)
    weights = absolute(table.text("weights", ""), folder)
    if weights and is_language(build):
        table.problem("weights", f'{build} has its values in a base; name their folder: build = "{PREFIX}FOLDER"')
    exceptions = table.list_of("weights-except", str, "name patterns", ())
    if weights and not Path(weights).is_file():
        table.problem("weights", f"{weights}: no such file; give a safetensors file of this model's weights")
    if exceptions and not weights:
        table.problem("weights-except", "belongs to weights, the file they are exceptions from")
    return ModelConfig(
        build=build,
        input=shape,
        vocabulary=vocabulary,
        classes=names,
        options=options,
        weights=weights,
        weights_except=exceptions,
        weights_map=_weights_map(table, weights),
    )


def _weights_map(table: TableReader, weights: str) -> str | dict[str, str]:
    """A name, or patterns and what they become; the file is not opened here."""
    from coordinator.exporting.weight_names import MAPS, pattern_problem

    given = table.raw("weights-map", "")
    if given and not weights:
        table.problem("weights-map", "belongs to weights, the file whose names it maps")
    if isinstance(given, str):
        return str(table.choice("weights-map", MAPS, ""))
    lines = table.table("weights-map").rest()
    for pattern, target in lines.items():
        problem = pattern_problem(pattern, target) if isinstance(target, str) else f"{target!r} is not a name"
        if problem:
            table.problem("weights-map", problem)
    return lines
