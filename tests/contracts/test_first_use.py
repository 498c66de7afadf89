"""What a process reads is known to msgspec before there are threads: two first uses at once end with SIGSEGV."""

from __future__ import annotations

import subprocess
import sys

CHECK = """
import sys

from edge.contracts.claims import ClaimRequest
from edge.contracts.manifest import ArtifactManifest
from edge.contracts.messages import BODIES
from edge.contracts.envelope import unseal
from edge.contracts.codec import decode_json, decode_msgpack
from edge.contracts.errors import MessageRejected

learned = []

def watch(frame, event, argument):
    if event == "call" and frame.f_code.co_name == "get_class_annotations":
        learned.append(frame.f_locals["obj"].__name__)

def read(what, *arguments, **keywords):
    try:
        what(*arguments, **keywords)
    except MessageRejected:
        pass

sys.setprofile(watch)
read(unseal, b"")
for kind in [*BODIES.values(), ClaimRequest]:
    read(decode_msgpack, b"", kind, limit=10)
read(decode_json, b"{}", ArtifactManifest, schema="", limit=10)
sys.setprofile(None)
print(",".join(learned))
"""


def test_no_message_is_learned_after_the_imports() -> None:
    done = subprocess.run([sys.executable, "-c", CHECK], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == ""
