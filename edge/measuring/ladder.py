"""A ladder: a folder of artifacts from small to large, each to be measured on a device, and a list of them.

``apportion profile --ladder DIR`` makes it where the coordinator is installed; a device only reads it.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from edge.contracts.codec import decode_json
from edge.contracts.errors import ConfigError, MessageRejected
from profiles.step_work import StepWork

SCHEMA = "apportion.ladder/1"
FILE_NAME = "ladder.json"
MAX_BYTES = 1 << 20
_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Rung(msgspec.Struct, frozen=True, kw_only=True):
    """One artifact, for one batch size.

    Attributes:
        shape: model and cut; rungs of one shape differ in runtime and batch.
        folder: of the artifact, in the ladder's.
        digest: SHA-256 of the artifact's manifest.
        parameters, macs, live_bytes, predicted_bytes, graph_bytes, work: as in the manifest's cost, for ``batch``.
        is_quick: whether a quick climb takes it.
    """

    shape: str
    folder: str
    digest: str
    runtime: str
    batch: int
    parameters: int
    macs: int
    live_bytes: int
    predicted_bytes: int
    graph_bytes: int = 0
    work: StepWork | None = None
    is_quick: bool = False


class Ladder(msgspec.Struct, frozen=True, kw_only=True):
    """Rungs by runtime, and within one by predicted memory."""

    schema: str = SCHEMA
    rungs: tuple[Rung, ...] = ()


def ladder_path(folder: Path) -> Path:
    """Where a ladder's list is."""
    return folder / FILE_NAME


def read_ladder(folder: Path) -> Ladder:
    """The ladder in ``folder``.

    Raises:
        ConfigError: there is none, or it cannot be read as one.
    """
    path = ladder_path(folder)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ConfigError(
            [f"--ladder: {folder} has no {FILE_NAME}"],
            hint="write one with `apportion profile --ladder-out DIR` on the coordinator, and copy the folder here",
        ) from error
    try:
        found = decode_json(data, Ladder, schema=SCHEMA, limit=MAX_BYTES)
    except MessageRejected as error:
        raise ConfigError([f"--ladder: {path}: {error}"], hint="write it anew with this release") from error
    for rung in found.rungs:
        if not _FOLDER.fullmatch(rung.folder):
            raise ConfigError([f"--ladder: {path}: {rung.folder!r} is no rung's folder"], hint="write it anew")
    return found


def chosen_rungs(
    ladder: Ladder, *, quick: bool = False, runtime: str = "", numbers: tuple[int, ...] = ()
) -> tuple[Rung, ...]:
    """The rungs to climb, in the ladder's order.

    Args:
        numbers: only these, counted from 1 over the whole ladder.

    Raises:
        ConfigError: a number that no rung has, or a runtime without rungs.
    """
    count = len(ladder.rungs)
    wrong = [number for number in numbers if not 1 <= number <= count]
    if wrong:
        raise ConfigError([f"--rung: {wrong[0]} is not a rung, the ladder has 1 to {count}"], hint="--rung N")
    chosen = tuple(
        rung
        for number, rung in enumerate(ladder.rungs, start=1)
        if (not numbers or number in numbers)
        and (numbers or not quick or rung.is_quick)
        and (not runtime or rung.runtime == runtime)
    )
    if not chosen:
        has = ", ".join(sorted({rung.runtime for rung in ladder.rungs})) or "none"
        raise ConfigError(
            [f"--ladder: no rung for runtime '{runtime}', the ladder has rungs for {has}"],
            hint="write the ladder with --runtime NAME",
        )
    return chosen
