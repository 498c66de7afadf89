"""Pages that only starting up needed: what goes, what must stay, and that everything still works afterwards."""

from __future__ import annotations

import subprocess
import sys

from edge.measuring.idle_size import measure_idle_sizes
from edge.supervisor.trainer_link import child_environment
from edge.system.startup_pages import SUPERVISOR_MODULES, _mappings

SMAPS = """\
00400000-00500000 r-xp 00000000 08:01 77 /lib/code.so
Rss:                 400 kB
Private_Dirty:         0 kB
Anonymous:             0 kB
00500000-00600000 r--p 00000000 08:01 77 /lib/relocated.so
Rss:                 100 kB
Private_Dirty:        96 kB
Anonymous:            96 kB
00600000-00700000 rw-p 00000000 08:01 77 /lib/data.so
Rss:                 100 kB
Private_Dirty:         0 kB
Anonymous:             0 kB
00700000-00800000 r--p 00000000 00:00 0 [vvar]
Rss:                   4 kB
Private_Dirty:         0 kB
Anonymous:             0 kB
00800000-00900000 r--s 00000000 08:01 78 /weights
Rss:                   0 kB
Private_Dirty:         0 kB
"""

PROGRAM = """
import numpy, onnxruntime, hashlib, json
from edge.system.meter import rss_bytes
from edge.system.startup_pages import release_startup_pages
before = rss_bytes()
released = release_startup_pages()
after = rss_bytes()
assert numpy.linalg.inv(numpy.eye(3) * 2)[0, 0] == 0.5
assert hashlib.sha256(b"").hexdigest().startswith("e3b0c442")
assert onnxruntime.get_available_providers()
print(json.dumps([before, released, after]))
"""


def test_startup_pages_only_unchanged_read_only_files_may_go() -> None:
    assert [m.start for m in _mappings(SMAPS.splitlines()) if m.is_unchanged_file] == [0x400000]


def test_startup_pages_are_given_back_and_libraries_still_work() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=child_environment(), capture_output=True, text=True, check=True
    )
    before, released, after = map(int, done.stdout.strip("[]\n").split(","))
    assert released > 10_000_000
    assert after < before - 10_000_000


def test_startup_pages_are_given_back_between_imports() -> None:
    measured = "from edge.system.meter import peak_rss_bytes; print(peak_rss_bytes())"
    at_once = f"import {', '.join(SUPERVISOR_MODULES)}; {measured}"
    done = subprocess.run(
        [sys.executable, "-c", at_once], env=child_environment(), capture_output=True, text=True, check=True
    )
    in_stages, _ = measure_idle_sizes("onnxruntime")
    assert in_stages < int(done.stdout) - 2_500_000


def test_supervisor_imports_what_checks_signatures_only_when_it_is_asked_to() -> None:
    from edge.system.startup_pages import SIGNATURE_MODULES, SUPERVISOR_MODULES, supervisor_modules

    assert supervisor_modules(["--device", "x"]) == SUPERVISOR_MODULES
    for words in (["--trust", "signing.pub"], ["--trust=signing.pub"]):
        assert supervisor_modules(words) == SIGNATURE_MODULES + SUPERVISOR_MODULES
