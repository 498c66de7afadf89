"""The checked-in bytes of every contract. ``python -m tests.contracts.golden_files`` writes those that are missing.

A file is never rewritten: when a field is added to a struct, its new bytes go into the next number
(``block.2.msgpack``), and the old file stays to prove that old bytes are still read.
"""

from __future__ import annotations

from pathlib import Path

from edge.contracts.envelope import seal
from edge.contracts.tensor_file import encode_tensors
from tests.contracts.samples import BODIES, CLAIM_LINK, CLAIMS, INFERENCE, LANGUAGE, MANIFEST, TENSORS

FOLDER = Path(__file__).parent / "golden"


def message_bytes(kind: str) -> bytes:
    """Today's bytes of the sample message of ``kind``."""
    return seal(kind, BODIES[kind], message_id="00112233445566778899aabbccddeeff", sent_at=1_760_000_000.25)


def today() -> dict[str, bytes]:
    """Name without number -> today's bytes."""
    return {
        **{f"{kind}.msgpack": message_bytes(kind) for kind in BODIES},
        **{f"{name}.json": claim.to_bytes() for name, claim in CLAIMS.items()},
        "claim_link.txt": CLAIM_LINK.to_text().encode(),
        "inference.json": INFERENCE.to_bytes(),
        "language.json": LANGUAGE.to_bytes(),
        "manifest.json": MANIFEST.to_bytes(),
        "tensors.safetensors": encode_tensors(TENSORS),
    }


def versions(name: str) -> list[Path]:
    """The golden files of ``name``, oldest first."""
    stem, suffix = name.rsplit(".", 1)
    return sorted(FOLDER.glob(f"{stem}.*.{suffix}"), key=lambda path: int(path.name.split(".")[1]))


def main() -> None:
    """Writes what is missing, or changed, under the next number."""
    FOLDER.mkdir(exist_ok=True)
    for name, data in today().items():
        known = versions(name)
        if not known or known[-1].read_bytes() != data:
            stem, suffix = name.rsplit(".", 1)
            path = FOLDER / f"{stem}.{len(known) + 1}.{suffix}"
            path.write_bytes(data)
            print(path.name)


if __name__ == "__main__":
    main()
