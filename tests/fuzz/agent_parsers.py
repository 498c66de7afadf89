"""One entry for whatever bytes reach an agent: messages, orders, manifests, tensor files, claims, grants.

The agent trusts one signing key, so nothing that is drawn may be followed: no order accepted, no state changed.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from edge.agent import Agent
from edge.contracts.claims import ClaimLink, ClaimRefusal, ClaimReply, ClaimRequest, KeyClaimReply, KeyClaimRequest
from edge.contracts.envelope import seal, unseal
from edge.contracts.errors import ApportionError
from edge.contracts.manifest import ArtifactManifest
from edge.contracts.messages import BODIES, Grant
from edge.contracts.packing import BITS, KEPT, PLACES, SHAPE, unpack_mask
from edge.contracts.plan import BlobRef
from edge.contracts.tensor_file import decode_tensors
from edge.identity.trust import Trust
from edge.supervisor.settings import AgentSettings
from edge.transfer.artifact_store import ArtifactStore
from edge.transport.base import Qos
from edge.transport.blocks import Upload

KINDS = sorted(BODIES)
GOLDEN = Path(__file__).parents[1] / "contracts" / "golden"


class SilentTransport:
    """Takes what the agent publishes and keeps the kinds."""

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()

    def start(self, deliver: Callable[[Any], None]) -> None:
        """Nothing ever arrives by itself."""

    def publish(self, topic: str, payload: bytes, *, qos: Qos) -> None:
        """Count it."""
        self.kinds[topic.rpartition("/")[2]] += 1

    def stop(self, last: tuple[str, bytes] | None = None) -> None:
        """Nothing to stop."""


class AgentUnderFire:
    """An idle agent that trusts one key, and one entry point per parser."""

    def __init__(self, folder: Path) -> None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        self.transport = SilentTransport()
        settings = AgentSettings(
            federation="fed",
            device="dev-1",
            data=str(folder),
            python=sys.executable,
            trust=Trust([Ed25519PrivateKey.generate().public_key()]),
        )
        self.store = ArtifactStore(folder / "store")
        self.agent = Agent(settings, self.transport, self.store)
        self.agent._outbox.is_connected = True
        self.parsers: tuple[Callable[[bytes], Any], ...] = (
            self.agent._received,
            self._message_of_a_kind,
            lambda data: unseal(data).read(BODIES[KINDS[data[-1] % len(KINDS)]]),
            ArtifactManifest.from_bytes,
            self._tensors,
            self._claims,
            self._grants,
        )

    def take(self, data: bytes) -> None:
        """Give ``data`` to the parser that its first byte names.

        Raises:
            Exception: anything but the project's own errors is a finding.
        """
        if len(data) < 2:
            return
        with contextlib.suppress(ApportionError):
            self.parsers[data[0] % len(self.parsers)](data[1:])

    def findings(self) -> list[str]:
        """What got through, in words."""
        found = []
        if self.agent.state != "idle":
            found.append(f"the agent is {self.agent.state}")
        if count := self.transport.kinds["accept"]:
            found.append(f"{count} orders were accepted")
        if files := [p.name for p in self.store.root.rglob("*") if p.is_file() and p.stat().st_size]:
            found.append(f"the store holds {files[:5]}")
        return found

    def _message_of_a_kind(self, data: bytes) -> None:
        kind = KINDS[data[0] % len(KINDS)]
        self.agent._received(seal(kind, msgspec.Raw(data[1:]), message_id="1", sent_at=0.5))

    def _tensors(self, data: bytes) -> None:
        tensors = decode_tensors(data, where="fuzz")
        for name in tensors:
            for suffix in (BITS, PLACES, SHAPE, KEPT):
                if name.endswith(suffix):
                    unpack_mask(name.removesuffix(suffix), tensors, where="fuzz")

    def _claims(self, data: bytes) -> None:
        forms = (ClaimReply, ClaimRefusal, ClaimRequest, KeyClaimReply, KeyClaimRequest)
        if data[0] % 6 == 5:
            ClaimLink.from_text(data[1:].decode("latin-1"))
        else:
            forms[data[0] % 6].from_bytes(data[1:])

    def _grants(self, data: bytes) -> None:
        upload = Upload(BlobRef("a" * 64, 1000, "raw", 1000), 0.0)
        for start in range(0, len(data), 12):
            part = data[start : start + 12].ljust(12, b"\0")
            numbers = [int.from_bytes(part[i : i + 4], "little", signed=True) for i in (0, 4, 8)]
            upload.granted(msgspec.convert(Grant("x", "a" * 64, *numbers), Grant), 1.0)
            for offset, length in upload.sends():
                assert 0 <= offset < offset + length <= 1000, (offset, length)


def seeds() -> list[bytes]:
    """Sound inputs of every parser, from the golden files."""
    found = []
    for path in sorted(GOLDEN.iterdir()):
        data = path.read_bytes()
        parser = {".msgpack": b"\0", ".json": b"\3", ".safetensors": b"\4", ".txt": b"\5\5"}.get(path.suffix)
        if parser is not None and len(data) < 16_000:
            found.append(parser + data)
            if path.suffix == ".msgpack":
                kind = path.name.split(".")[0]
                body = bytes(unseal(data).body) if kind in BODIES else b""
                found.append(b"\1" + bytes([KINDS.index(kind) if kind in KINDS else 0]) + body)
            if "claim" in path.name:
                found.append(b"\5\0" + data)
    return found
