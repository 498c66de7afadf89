"""What devices say of masks is believed with the signature of a certificate that stands, and not otherwise."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from coordinator.identity.authority import Authority
from coordinator.identity.masking_signatures import MaskingSignatures
from edge.contracts.envelope import Envelope, seal, unseal
from edge.contracts.errors import SignatureRejected
from edge.contracts.masking import SAID_BY_DEVICES, Keys
from edge.contracts.signing import device_masking_text
from edge.identity.device_identity import make_request
from edge.identity.own_signature import OwnSignature

RUN = "ab" * 16


@pytest.fixture
def identity(tmp_path: Path) -> Path:
    with Authority.create(tmp_path / "identity") as authority:
        for name in ("pi-1", "pi-2"):
            authority.sign_device(make_request(tmp_path / name, name).request.read_bytes(), name)
    return tmp_path / "identity"


def said(folder: Path, device: str, *, kind: str = "keys", signed_as: str = "keys", run: str = RUN) -> Envelope:
    own = OwnSignature(folder / device / "device.key")
    body = Keys("a" * 64, b"\1" * 32, b"\2" * 32)
    return unseal(seal(kind, body, sign=lambda packed: own(device_masking_text(run, signed_as, packed))))


def test_own_words_are_believed_and_other_kinds_are_not_looked_at(identity: Path, tmp_path: Path) -> None:
    check = MaskingSignatures(identity, RUN)
    for kind in SAID_BY_DEVICES:
        check("pi-1", said(tmp_path, "pi-1", kind=kind, signed_as=kind))
        with pytest.raises(SignatureRejected, match=f"'{kind}' of 'pi-1' is not signed"):
            check("pi-1", unseal(seal(kind, Keys("a" * 64, b"", b""))))
    check("pi-1", unseal(seal("bye", {"reason": "x"})))


@pytest.mark.parametrize(
    ("device", "change"),
    [("pi-2", {}), ("pi-1", {"signed_as": "shares"}), ("pi-1", {"run": "cd" * 16}), ("pi-3", {})],
)
def test_words_of_another_device_kind_or_run_are_refused(
    identity: Path, tmp_path: Path, device: str, change: dict[str, str]
) -> None:
    with pytest.raises(SignatureRejected, match="a signature by none of"):
        MaskingSignatures(identity, RUN)(device, said(tmp_path, "pi-1", **change))


def test_changed_body_is_refused(identity: Path, tmp_path: Path) -> None:
    envelope = said(tmp_path, "pi-1")
    changed = bytes(envelope.body).replace(b"\1" * 32, b"\3" * 32)
    with pytest.raises(SignatureRejected, match="changed on its way"):
        MaskingSignatures(identity, RUN)("pi-1", msgspec.structs.replace(envelope, body=msgspec.Raw(changed)))


def test_revoked_and_ended_certificates_count_no_more(identity: Path, tmp_path: Path) -> None:
    check = MaskingSignatures(identity, RUN)
    check("pi-1", said(tmp_path, "pi-1"))
    with Authority(identity) as authority:
        authority.revoke("pi-1")
    with pytest.raises(SignatureRejected, match="none of 0 certificates"):
        check("pi-1", said(tmp_path, "pi-1"))
    later = MaskingSignatures(identity, RUN, now=lambda: time.time() + 50 * 365 * 86_400)
    with pytest.raises(SignatureRejected, match="none of 0 certificates"):
        later("pi-2", said(tmp_path, "pi-2"))


def test_device_without_a_certificate_that_stands_is_unfit_with_the_next_step(identity: Path) -> None:
    check = MaskingSignatures(identity, RUN)
    assert check.unfit("pi-1") == ""
    assert "pi-3 has no certificate" in check.unfit("pi-3")
    with Authority(identity) as authority:
        authority.revoke("pi-1")
    assert "apportion ca token" in check.unfit("pi-1")
    assert "pi-2 has no certificate" in MaskingSignatures(identity, RUN, now=lambda: 1e12).unfit("pi-2")
    gone = MaskingSignatures(identity / "gone", RUN)
    assert "cannot read its identity now" in gone.unfit("pi-1")


def test_key_that_cannot_be_used_signs_nothing(tmp_path: Path) -> None:
    (tmp_path / "device.key").write_text("no key")
    assert OwnSignature(tmp_path / "device.key")(b"text") == b""
