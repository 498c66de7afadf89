"""Connections to a ledger's file are open from the start: a coordinator's threads that read at once open no more."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from coordinator.ledger.ledger import Ledger


def open_files(folder: Path) -> int:
    """Of this process, how many of its open files are in ``folder``."""
    links = []
    for number in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:  # the listing's own
            continue
    return sum(link.startswith(str(folder)) for link in links)


def test_threads_that_read_at_once_leave_no_more_files_open(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "ledger.sqlite", federation="fed", config="", seed=0) as ledger:
        before = open_files(tmp_path)
        meet = threading.Barrier(4)

        def read() -> None:
            for _ in range(20):
                meet.wait(10)
                ledger.federation()

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert before >= 4
        assert open_files(tmp_path) == before
    assert open_files(tmp_path) == 0
