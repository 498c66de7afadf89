"""A ledger in a file whose sync has failed writes nothing more; the next process writes its log anew, or finds nothing.

SQLite syncs by itself, so the failure is that of a library loaded before the system's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator.ledger.ledger import Ledger

ROOT = Path(__file__).parents[3]
FEDERATION = "fed"

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int fails(int fd) {
    static int left = -1;
    char link[64], name[4096];
    const char *only = getenv("FAIL_ON"), *armed = getenv("FAIL_WHEN");
    if (armed == NULL || access(armed, F_OK) != 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, name, sizeof name - 1);
    if (size < 0) return 0;
    name[size] = 0;
    if (only == NULL || strstr(name, only) == NULL) return 0;
    if (left < 0) left = 1;
    return left-- > 0;
}

int fsync(int fd) {
    int (*real)(int) = dlsym(RTLD_NEXT, "fsync");
    if (fails(fd)) { errno = EIO; return -1; }
    return real(fd);
}

int fdatasync(int fd) {
    int (*real)(int) = dlsym(RTLD_NEXT, "fdatasync");
    if (fails(fd)) { errno = EIO; return -1; }
    return real(fd);
}
"""

WRITER = """
import sys
from pathlib import Path
from coordinator.ledger.ledger import Ledger
from edge.contracts.errors import LedgerError
with Ledger.open(Path(sys.argv[1])) as ledger:
    ledger.blobs.add("a" * 64, 1)
    Path(sys.argv[2]).touch()
    for digest in ("b", "c", "d"):
        try:
            ledger.blobs.add(digest * 64, 1)
            print(digest, "written")
        except LedgerError as error:
            print(digest, error)
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler (Debian: gcc)")
def test_ledger_writes_nothing_after_a_sync_that_failed(tmp_path: Path) -> None:
    (tmp_path / "shim.c").write_text(SHIM)
    library = tmp_path / "shim.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "shim.c", "-ldl"], check=True)
    file = tmp_path / "ledger.sqlite"
    Ledger.create(file, federation=FEDERATION, config="", seed=0).close()
    environment = dict(os.environ, LD_PRELOAD=str(library), FAIL_ON="ledger.sqlite-wal", FAIL_WHEN=str(tmp_path / "on"))
    ended = subprocess.run(
        [sys.executable, "-c", WRITER, str(file), str(tmp_path / "on")],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    first, *later = ended.stdout.splitlines()
    assert "disk I/O error" in first
    assert "nothing changed" in first
    assert len(later) == 2
    for line in later:
        assert "nothing is written any more after its disk failed" in line
    with Ledger.open(file) as ledger:
        assert ledger.blobs.sizes().keys() == {"a" * 64}
        ledger.blobs.add("b" * 64, 1)
        assert ledger.audit.findings() == []
