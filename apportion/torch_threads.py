"""How many threads torch computes with in the program that asked for a run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def torch_threads_kept() -> Iterator[None]:
    """Simulations fix torch's threads so that results repeat; the program that asked for one has its own again."""
    import torch

    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)
