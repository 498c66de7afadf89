"""The questions of a run, ``[evaluation] choices``, as windows of its language model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.exporting.cut_exporter import run_input_spec
from coordinator.language.source import PREFIX, source_of
from edge.contracts.errors import ConfigError
from edge.language.questions import ChoiceWindows, choice_windows
from edge.language.tokenizer import Tokenizer
from edge.training.sources.description import read_description

if TYPE_CHECKING:
    from coordinator.config.run_config import RunConfig

_TOKENIZER = "tokenizer.json"


def run_choices(config: RunConfig) -> ChoiceWindows | None:
    """The questions that models of the run are scored on; None of a run without.

    Their tokenizer is the one that a ``data.toml`` beside them names, else that of the model's folder.

    Raises:
        ConfigError: there is no tokenizer.
        DataError: as :func:`edge.language.questions.choice_windows`, or the tokenizer is another model's.
    """
    if not config.evaluation.choices:
        return None
    path = Path(config.evaluation.choices)
    description, spec = read_description(path.parent), run_input_spec(config)
    tokenizer = Tokenizer(_tokenizer(config, path, description.tokenizer), end=description.end)
    tokenizer.check(spec.vocabulary)
    return choice_windows(path, tokenizer, spec.shape[0])


def _tokenizer(config: RunConfig, path: Path, named: str) -> Path:
    if named:
        return path.parent / named
    folder = source_of(config.model.build.removeprefix(PREFIX), config.model.options).folder
    if folder is None or not (folder / _TOKENIZER).is_file():
        raise ConfigError(
            [
                f"$.evaluation.choices: {path} is text, and the model has no tokenizer; name one in "
                f'{path.parent / "data.toml"}: tokenizer = "{_TOKENIZER}"'
            ]
        )
    return folder / _TOKENIZER
