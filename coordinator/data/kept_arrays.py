"""Arrays that take seconds to make, kept on disk for the next process: one ``.npy`` file each, mapped when it is there.

They are in ``apportion`` under ``XDG_CACHE_HOME``, or ``~/.cache`` where it is unset, may be deleted at any time, and
are never trusted for more than their key says. Where nothing can be written, every process makes its own.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


def cache_folder() -> Path:
    """Where arrays are kept; it need not be there.

    Raises:
        RuntimeError: there is no home folder.
    """
    named = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(named) if named else Path.home() / ".cache") / "apportion"


def kept_array(key: str, make: Callable[[], np.ndarray]) -> np.ndarray:
    """The array kept as ``key``, read-only; where none can be read, what ``make`` gives, which is kept.

    Args:
        key: a file's name that says all the array depends on.
    """
    import numpy as np

    try:
        path = cache_folder() / f"{key}.npy"
        kept: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
        return kept
    except (OSError, ValueError, EOFError, RuntimeError):  # not there, cut off, or nobody's home
        array = make()
    try:
        path = cache_folder() / f"{key}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False) as file:
            try:
                np.save(file, array, allow_pickle=False)
                file.close()
                os.replace(file.name, path)  # whole or not at all, also beside other processes
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise
    except (OSError, RuntimeError):
        pass
    return array
