"""``transformers:FILE.json``: the ``config.json`` of a model, as people have it.

It is read where a run file or a command line names it. Its text travels on as the option ``config``, so that neither a
run nor an artifact depends on the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edge.contracts.errors import ConfigError

CONFIG = "config"
"""The option that holds the text."""

_LARGEST_BYTES = 1 << 20
BOOKKEEPING = frozenset(
    (
        *("model_type", "architectures", "transformers_version", "dtype", "torch_dtype"),
        *("num_labels", "id2label", "label2id", "auto_map"),
    )
)
"""Of the file, and not of the network: classes are the run's, and code that a file names is not run."""


def with_config_file(build: str, options: Mapping[str, Any], folder: Path) -> tuple[str, dict[str, Any]]:
    """The model's name without the file it may name, and its options with that file's text.

    Args:
        folder: paths count from it.

    Raises:
        ConfigError: no such file, not JSON, or without a ``model_type``.
    """
    package, _, name = build.partition(":")
    if package != "transformers" or not name.endswith(".json"):
        return build, dict(options)
    path = folder / Path(name).expanduser()
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise ValueError(f"larger than {_LARGEST_BYTES} bytes")
        found = json.loads(path.read_text(encoding="utf-8"))
        kind = found["model_type"]
        if not isinstance(kind, str) or not kind.isidentifier():
            raise ValueError(f"model_type is {kind!r}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            [f"$.model.build: {path} is not a model's config.json ({type(error).__name__}: {error})"],
            hint="give a JSON file that has a model_type, or a type: transformers:vit",
        ) from error
    settings = {key: value for key, value in found.items() if key not in BOOKKEEPING}
    return f"{package}:{kind}", {**options, CONFIG: json.dumps(settings, sort_keys=True)}
