"""What the switch says and which round was the last, in a file of the agent's store: both outlive a restart."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import msgspec

from edge.system.atomic_files import publish_file, sync

log = logging.getLogger("apportion.home")

FILE = "home-assistant.json"


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """The file's contents.

    Attributes:
        take_part: as the owner has switched it.
        last_round: of the last accepted update, from 1; None: none yet.
    """

    take_part: bool = True
    last_round: int | None = None


def read_kept(folder: Path) -> Kept:
    """What the file has. One that is damaged counts as switched off: the owner may have done so, and sees it."""
    try:
        return msgspec.json.decode((folder / FILE).read_bytes(), type=Kept)
    except FileNotFoundError:
        return Kept()
    except (OSError, msgspec.MsgspecError) as error:
        log.warning("%s cannot be read (%s): the device takes no part until it is switched on", folder / FILE, error)
        return Kept(take_part=False)


def write_kept(folder: Path, kept: Kept) -> None:
    """Write the file, on the disk when this returns; a disk that takes nothing is told of, and ends nothing."""
    unfinished = folder / f".{FILE}.{os.getpid()}"
    try:
        with unfinished.open("wb") as file:
            file.write(msgspec.json.encode(kept))
            sync(file)
        publish_file(unfinished, folder / FILE)
    except OSError as error:
        log.warning("%s is not written (%s): a restart forgets the switch; free disk space", folder / FILE, error)
