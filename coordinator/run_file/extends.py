"""Run files that build on another one: ``extends = "other.toml"`` at the top, then only what differs.

Tables are merged key by key; every other value, lists of tables like ``[[cohort.local]]`` too, replaces that of the
base. A run folder holds the merged file, so a run does not depend on its base once it has started.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edge.contracts.errors import ConfigError

EXTENDS = "extends"
_DEEPEST = 8
"""Files in one chain; more is taken for a mistake."""


def read_document(text: str, folder: Path, *, chain: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The tables of a run file's ``text`` over those of the file it extends, whose path counts from ``folder``.

    Raises:
        ConfigError: not TOML, a base that cannot be read, or one that extends itself.
    """
    where = f"{chain[-1]}: " if chain else ""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([f"$: {where}not TOML: {error}"]) from error
    named = document.pop(EXTENDS, None)
    if named is None:
        return document
    if not isinstance(named, str):
        raise ConfigError([f"$.{EXTENDS}: {where}{named!r}; the path of another run file expected"])
    base = (folder / named).resolve()
    if base in chain or len(chain) >= _DEEPEST:
        names = " -> ".join(path.name for path in (*chain, base))
        raise ConfigError([f"$.{EXTENDS}: {names}: a run file cannot extend itself, nor a chain over {_DEEPEST} files"])
    try:
        below = base.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            [f"$.{EXTENDS}: {where}{base}: cannot be read ({error})"],
            hint=f"{EXTENDS} is a path relative to the folder of the file it stands in",
        ) from error
    return merged(read_document(below, base.parent, chain=(*chain, base)), document)


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with ``changes``: tables key by key, anything else as a whole."""
    result = dict(base)
    for key, value in changes.items():
        below = result.get(key)
        both = isinstance(below, dict) and isinstance(value, dict)
        result[key] = merged(below, value) if both else value  # type: ignore[arg-type]
    return result
