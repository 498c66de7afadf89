"""Writes a new project into a folder: the files of ``files/``, whose names end in ``.txt`` here so that nothing here
takes them for modules of ours.
"""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

from edge.contracts.errors import ConfigError
from edge.contracts.release import RELEASE
from edge.system.atomic_files import write_whole

SUFFIX = ".txt"
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]+")
NAME, VERSION = "@NAME@", "@RELEASE@"
"""What is put in: the federation's name, after the folder's, and the release that wrote it."""


def write_project(folder: Path) -> list[Path]:
    """The files that were written, in ``folder``, which is made where it is not there.

    Raises:
        ConfigError: the folder has one of the files already, or is none; nothing was written.
    """
    if folder.exists() and not folder.is_dir():
        raise ConfigError([f"FOLDER: {folder} is not a folder; name another"])
    texts = {folder / name: text for name, text in _texts(federation_name(folder)).items()}
    if there := sorted(path.name for path in texts if path.exists()):
        names = ", ".join(there)
        raise ConfigError([f"FOLDER: {folder} has {names} already; name an empty or a new folder, nothing was written"])
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        write_whole(path, text.encode())
    return list(texts)


def federation_name(folder: Path) -> str:
    """The folder's name as far as a topic can have it; ``project`` where nothing of it can."""
    return _NOT_IN_NAMES.sub("-", folder.resolve().name).strip("-_")[:64] or "project"


def _texts(name: str) -> dict[str, str]:
    files = sorted(resources.files("coordinator.project").joinpath("files").iterdir(), key=lambda file: file.name)
    return {
        file.name.removesuffix(SUFFIX): file.read_text(encoding="utf-8").replace(NAME, name).replace(VERSION, RELEASE)
        for file in files
        if file.name.endswith(SUFFIX)
    }
