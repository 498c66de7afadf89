"""Measures this machine on a ladder and writes the file that its owner may share, after showing all of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge.contracts.errors import ApportionError, ConfigError
from edge.measuring.report import LadderArguments, climbed
from edge.sharing.anonymity import found_in, identifying
from edge.sharing.measurement import shared_measurement
from edge.sharing.plausibility import implausible
from edge.sharing.signed_file import file_text, signed
from profiles.probe import ROOT, probe
from profiles.stored_profile import write_whole
from profiles.system_files import SystemFiles

DESCRIPTION = "Measure training steps on this machine, and write one anonymous, signed file of it to share."
EXAMPLE = "Example: apportion bench device --ladder ladder --share my-device.json"
SHARE_HELP = "the file to write; it is shown in full before"
YES_HELP = "write it without asking"
QUESTION = "This is the whole file. Write it? [y/N] "
WHERE_TO = "docs/hardware/README.md says where to send it"


@dataclass(frozen=True)
class ShareArguments:
    """What a command line says.

    Attributes:
        is_agreed: write without asking.
    """

    ladder: LadderArguments
    file: Path
    is_agreed: bool = False


def share(
    arguments: ShareArguments,
    tell: Callable[[str], None],
    ask: Callable[[str], str],
    *,
    root: Path = ROOT,
) -> dict[str, Any]:
    """Measure, show and write; the values of ``--json``.

    Args:
        ask: puts the question; its answer.
        root: where the machine's own files are.

    Raises:
        ConfigError: the file is there already, no ladder, nothing was measured, or the file would tell who it is from.
    """
    if arguments.file.exists():
        raise ConfigError([f"--share: {arguments.file} is there already; name another file, or remove it"])
    folder = arguments.file.resolve().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):  # before anything takes long
        raise ConfigError([f"--share: {folder} is no folder that can be written; make it first"])
    profile = probe("shared", root=root)
    rows = climbed(arguments.ladder, tell).rows
    try:
        measurement = shared_measurement(profile, rows)
    except ValueError as error:
        raise ConfigError([f"--ladder: {error}"]) from error
    text = file_text(signed(measurement))
    if told := found_in(text, identifying(SystemFiles(root))):
        kinds = ", ".join(f"{what} {value!r}" for what, value in told)
        raise ConfigError(
            [f"--share: the file would hold this machine's {kinds}; nothing is written"],
            hint="it is in the name of the board, the processor or the system; please report it",
        )
    problems = list(implausible(measurement))
    for line in (*text.splitlines(), *(f"note: {problem}; the table may refuse it" for problem in problems)):
        tell(line)
    is_written = arguments.is_agreed or ask(QUESTION).strip().lower() in ("y", "yes")
    if is_written:
        try:
            write_whole(arguments.file, text.encode())
        except OSError as error:
            raise ApportionError(f"{arguments.file} cannot be written ({error})") from error
        tell(f"written to {arguments.file}; {WHERE_TO}")
    else:
        tell("nothing is written")
    return {
        "file": str(arguments.file) if is_written else None,
        "rows": len(measurement.rows),
        "problems": problems,
    }
