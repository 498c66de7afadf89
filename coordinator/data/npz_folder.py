"""Arrays of an npz file in the data folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edge.contracts.errors import DataError

if TYPE_CHECKING:
    import numpy as np


def open_arrays(path: Path | None, name: str, keys: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Arrays ``keys`` of the npz file ``path / name``; never unpickles.

    Raises:
        DataError: no path, no file, unreadable file, or a missing array; each with the next step.
    """
    import zipfile

    import numpy as np

    if path is None:
        raise DataError(f"{name}: no data folder is set; set APPORTION_DATA or data.path to the folder that holds it")
    file = path / name
    try:
        with np.load(file, allow_pickle=False) as archive:
            missing = [key for key in keys if key not in archive]
            if missing:
                raise DataError(
                    f"{file}: arrays {missing} are missing, it has {sorted(archive)}; use the packed dataset"
                )
            return {key: archive[key] for key in keys}
    except FileNotFoundError as error:
        raise DataError(f"{file}: no such file; set APPORTION_DATA or data.path to the folder that holds it") from error
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"{file}: cannot be read ({error}); copy it again") from error
