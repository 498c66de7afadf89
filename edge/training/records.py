"""What examples have beside ``x``, as one array: ``y`` alone as it is, several named arrays as records.

Records are a NumPy array [N] with a field for each array, so that whatever picks, deals or stores examples does so with
all of their arrays at once.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

Y = "y"


def beside_x(arrays: Mapping[str, np.ndarray], examples: int) -> np.ndarray:
    """The arrays of ``examples`` examples apart from ``x``: ``y`` itself where it is the only one, else records."""
    named = {name: value for name, value in arrays.items() if name != "x"}
    return named[Y] if set(named) == {Y} else records(named, examples)


def records(arrays: Mapping[str, np.ndarray], examples: int) -> np.ndarray:
    """One record for each example, with a field for each array [examples, ...]; no field at all of none."""
    made = np.zeros(examples, [(name, value.dtype, value.shape[1:]) for name, value in arrays.items()])
    for name, value in arrays.items():
        made[name] = value
    return made


def names_of(y: np.ndarray) -> tuple[str, ...]:
    """Names of the arrays in ``y``."""
    return (Y,) if y.dtype.names is None else tuple(y.dtype.names)


def entry(y: np.ndarray, name: str) -> np.ndarray:
    """The array ``name`` of those in ``y``, C-contiguous.

    Raises:
        KeyError: there is none of that name.
    """
    if y.dtype.names is None:
        if name != Y:
            raise KeyError(name)
        return y
    if name not in y.dtype.names:
        raise KeyError(name)
    return np.ascontiguousarray(y[name])
