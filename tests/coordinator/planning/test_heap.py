"""Free memory goes back to the system."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator.planning.heap import give_back


def resident_kb() -> int:
    return next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if "VmRSS" in line)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="this C library has no malloc_trim")
def test_what_lies_free_below_something_that_is_kept_is_given_back() -> None:
    kept, pieces = [], []
    for _ in range(2_000):
        pieces.append(bytearray(32_768))
        kept.append(bytearray(600))
    full = resident_kb()
    pieces.clear()
    give_back()
    # 64 MB in pieces small enough for the heap, a small kept one after each.
    assert full - resident_kb() > 30_000
    assert len(kept) == 2_000


COUNT_HEAPS = """
import ctypes, os, sys, threading
from coordinator.planning.heap import share_one_heap
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
if sys.argv[1] == "one":
    assert share_one_heap()
done, kept = threading.Barrier(5), []
def allocate():
    kept.append([bytearray(2_000) for _ in range(2_000)])
    done.wait()
    done.wait()
threads = [threading.Thread(target=allocate) for _ in range(4)]
for thread in threads: thread.start()
done.wait()
file = ctypes.c_void_p(libc.fopen(os.fsencode(sys.argv[2]), b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
done.wait()
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="this C library has no malloc_info")
def test_threads_share_one_heap(tmp_path: Path) -> None:
    def heaps(mode: str) -> int:
        told = tmp_path / mode
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
        subprocess.run([sys.executable, "-c", COUNT_HEAPS, mode, str(told)], check=True, timeout=60, env=clean)
        return told.read_text().count("<heap nr=")

    assert heaps("one") == 1
    assert heaps("several") > 1
