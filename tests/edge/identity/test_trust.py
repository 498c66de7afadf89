"""Orders and manifests on a device with keys: signed ones are followed, all others refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.identity.authority import Authority
from coordinator.identity.signing import SigningKey, introduce, retire
from edge.__main__ import main
from edge.contracts.codec import decode_msgpack, encode_msgpack
from edge.contracts.envelope import MAX_MESSAGE_BYTES, Envelope, seal, unseal
from edge.contracts.errors import ConfigError, SignatureRejected
from edge.contracts.identity import KeyStatement, Signers
from edge.contracts.plan import WorkOrder
from edge.contracts.signing import signers_text
from edge.identity.trust import Trust
from tests.edge.agent_bench import Bench
from tests.edge.tiny_artifact import TinyJob

OURS = SigningKey(Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
THEIRS = SigningKey(Ed25519PrivateKey.from_private_bytes(bytes(32)))


@pytest.fixture
def trust(tmp_path: Path) -> Trust:
    path = tmp_path / "signing.pub"
    path.write_bytes(OURS.public_pem)
    return Trust.load(path)


def with_manifest_signed(job: TinyJob, key: SigningKey = OURS) -> WorkOrder:
    signature = key.manifest(job.blobs[job.order.artifact.digest])
    return msgspec.structs.replace(job.order, artifact_signature=signature)


def send(bench: Bench, order: WorkOrder, key: SigningKey | None = OURS) -> None:
    bench.coordinator.send_bytes("order", seal("order", order, sign=None if key is None else key.order))


def refusal(bench: Bench) -> Any:
    refused = bench.coordinator.wait_for("refuse")
    assert refused.code == "bad-signature"
    return refused


def test_agent_with_keys_follows_a_signed_order(bench: Bench, trust: Trust) -> None:
    bench.agent(trust=trust)
    job = bench.publish()
    order = with_manifest_signed(job)
    send(bench, order)
    send(bench, order)  # repeated: the same signature, still the same order
    report = bench.coordinator.wait_for("report")
    assert report.assignment_id == order.assignment_id
    assert "refuse" not in bench.coordinator.kinds()


def test_agent_without_keys_follows_a_signed_order(bench: Bench) -> None:
    bench.agent()
    send(bench, with_manifest_signed(bench.publish(), THEIRS), THEIRS)
    bench.coordinator.wait_for("report")


@pytest.mark.parametrize(
    ("key", "words"), [(None, "is not signed and this device has 1 trusted key"), (THEIRS, "by none of the 1 trusted")]
)
def test_agent_with_keys_refuses_an_order_by_nobody_or_another(
    bench: Bench, trust: Trust, key: SigningKey | None, words: str
) -> None:
    agent = bench.agent(trust=trust)
    order = with_manifest_signed(bench.publish())
    send(bench, order, key)
    refused = refusal(bench)
    assert refused.assignment_id == order.assignment_id
    assert words in refused.reason
    assert "--trust" in refused.reason
    assert agent.state == "idle"
    assert not {"accept", "get"} & set(bench.coordinator.kinds())


def test_agent_with_keys_refuses_an_order_changed_after_signing(bench: Bench, trust: Trust) -> None:
    bench.agent(trust=trust)
    order = with_manifest_signed(bench.publish())
    envelope = unseal(seal("order", order, sign=OURS.order))
    changed = msgspec.structs.replace(order, hyper={**order.hyper, "lr": 1e6})
    forged = msgspec.structs.replace(envelope, body=msgspec.Raw(encode_msgpack(changed)))
    bench.coordinator.send_bytes("order", encode_msgpack(forged))
    assert "or was changed on its way" in refusal(bench).reason
    assert "get" not in bench.coordinator.kinds()


@pytest.mark.parametrize("kind", ["none", "theirs", "of the order", "of another manifest", "short"])
def test_agent_with_keys_refuses_a_manifest_that_is_not_signed(bench: Bench, trust: Trust, kind: str) -> None:
    agent = bench.agent(trust=trust)
    job = bench.publish()
    manifest = job.blobs[job.order.artifact.digest]
    signature = {
        "none": b"",
        "theirs": THEIRS.manifest(manifest),
        "of the order": OURS.order(manifest),
        "of another manifest": OURS.manifest(manifest + b" "),
        "short": OURS.manifest(manifest)[:63],
    }[kind]
    send(bench, msgspec.structs.replace(job.order, artifact_signature=signature))
    refused = refusal(bench)
    assert f"manifest of {len(manifest)} bytes" in refused.reason
    assert agent.state == "idle"
    asked = {body.digest for name, body in bench.coordinator.seen if name == "get"}
    assert asked == {job.order.artifact.digest}  # nothing that the manifest names was fetched


def test_agent_with_keys_checks_a_manifest_it_has_already(bench: Bench, trust: Trust) -> None:
    bench.agent()
    job = bench.publish()
    bench.coordinator.order(job.order)
    bench.coordinator.wait_for("report")
    bench.stop()
    bench.agent(trust=trust, hello=2)
    again = msgspec.structs.replace(job.order, assignment_id="b" * 64, attempt=1)
    send(bench, again)
    assert "manifest of" in refusal(bench).reason


@pytest.mark.slow
def test_forged_order_under_the_assignment_in_hand_does_not_end_it(bench: Bench, trust: Trust) -> None:
    bench.agent(trust=trust)
    bench.coordinator.is_serving = False
    order = with_manifest_signed(bench.publish())
    send(bench, order)
    bench.coordinator.wait_for("accept")
    send(bench, msgspec.structs.replace(order, upload=()), None)
    assert bench.coordinator.wait_for("error").code == "bad-signature"
    bench.coordinator.is_serving = True
    bench.coordinator.wait_for("report")
    assert "refuse" not in bench.coordinator.kinds()


def test_order_for_another_device_is_not_refused_for_it(bench: Bench, trust: Trust) -> None:
    bench.agent(trust=trust)
    send(bench, msgspec.structs.replace(bench.publish().order, device="dev-2"), None)
    assert bench.coordinator.wait_for("error").code == "bad-message"
    assert "refuse" not in bench.coordinator.kinds()


def test_two_keys_are_trusted_while_keys_are_changed(tmp_path: Path) -> None:
    path = tmp_path / "both.pub"
    path.write_bytes(THEIRS.public_pem + b"\n" + OURS.public_pem)
    both = Trust.load(path)
    for key in (OURS, THEIRS):
        both.check_manifest(b"manifest", key.manifest(b"manifest"))
    third = SigningKey(Ed25519PrivateKey.generate())
    with pytest.raises(SignatureRejected, match="none of the 2 trusted keys"):
        both.check_manifest(b"manifest", third.manifest(b"manifest"))


def test_signature_of_a_manifest_is_none_of_an_order(trust: Trust, bench: Bench) -> None:
    order = bench.publish().order
    body = encode_msgpack(order)
    trust.check_order(order, body, OURS.order(body))
    with pytest.raises(SignatureRejected, match="or was changed on its way"):
        trust.check_order(order, body, OURS.manifest(body))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read"),
        (b"", "holds no PEM public key"),
        (b"words", "holds no PEM public key"),
        (b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "cannot be read"),
        (OURS.public_pem + b"words", "holds no PEM public key"),
    ],
)
def test_unusable_key_file_is_a_configuration_error(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "signing.pub"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"--trust: .*signing.pub {words}"):
        Trust.load(path)


def test_key_of_another_kind_is_refused_by_its_name(tmp_path: Path) -> None:
    public = generate_private_key(SECP256R1()).public_key()
    (tmp_path / "ca.pub").write_bytes(
        public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    with pytest.raises(ConfigError, match=r"ca\.pub holds a \w+, an Ed25519 key is wanted"):
        Trust.load(tmp_path / "ca.pub")


def test_agent_names_a_bad_key_file_with_the_other_problems(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(
        [
            *("agent", "--broker", "http://x", "--federation", "fed", "--device", "d", "--data", "x"),
            *("--store", str(tmp_path / "store"), "--trust", str(tmp_path / "none.pub")),
        ]
    )
    error = capsys.readouterr().err
    assert status == 2
    assert "2 problems" in error
    assert "--trust" in error


class OldEnvelope(msgspec.Struct, frozen=True):
    """What agents knew before there were signatures."""

    v: int
    id: str
    kind: str
    sent_at: float
    body: msgspec.Raw


def test_message_without_a_signature_has_no_such_field_and_old_agents_read_both() -> None:
    plain, signed = seal("hello", {}), seal("order", {"a": 1}, sign=OURS.order)
    assert set(decode_msgpack(plain, dict, limit=MAX_MESSAGE_BYTES)) == {"v", "id", "kind", "sent_at", "body"}
    assert decode_msgpack(signed, OldEnvelope, limit=MAX_MESSAGE_BYTES).kind == "order"
    envelope = decode_msgpack(signed, Envelope, limit=MAX_MESSAGE_BYTES)
    assert envelope.signature == OURS.order(bytes(envelope.body))


def test_agent_follows_a_change_of_the_signing_key_and_refuses_the_retired_one(bench: Bench, tmp_path: Path) -> None:
    Authority.create(tmp_path / "identity").close()
    old = SigningKey.load(tmp_path / "identity")
    (tmp_path / "signing.pub").write_bytes(old.public_pem)
    trust = Trust.load(tmp_path / "signing.pub")
    bench.agent(trust=trust)
    introduce(tmp_path / "identity")
    retire(tmp_path / "identity")
    new = SigningKey.load(tmp_path / "identity")
    job = bench.publish()
    bench.coordinator.send("signers", Signers(new.statements))
    send(bench, with_manifest_signed(job, new), new)
    bench.coordinator.wait_for("report")
    later = msgspec.structs.replace(with_manifest_signed(job, old), assignment_id="ab" * 16)
    send(bench, later, old)
    assert refusal(bench).assignment_id == "ab" * 16


def test_a_sites_key_signs_orders_and_nothing_else(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "signing.pub").write_bytes(OURS.public_pem)
    (tmp_path / "site.pub").write_bytes(THEIRS.public_pem)
    trust = Trust.load(tmp_path / "signing.pub", tmp_path / "site.pub")
    order = with_manifest_signed(bench.publish())
    body = encode_msgpack(order)
    for key in (OURS, THEIRS):
        trust.check_order(order, body, key.order(body))
    for check in (
        lambda: trust.check_manifest(b"manifest", THEIRS.manifest(b"manifest")),
        lambda: trust.check_masking("roster", body, THEIRS.masking("roster", body)),
    ):
        with pytest.raises(SignatureRejected, match="by none of the 1 trusted key"):
            check()
    alone = KeyStatement(1, (THEIRS.public_raw,), THEIRS.sign(signers_text(1, (THEIRS.public_raw,))))
    both = (OURS.public_raw, THEIRS.public_raw)
    beside = KeyStatement(1, both, THEIRS.sign(signers_text(1, both)))
    assert not trust.learn([alone, beside])
    trust.check_manifest(b"manifest", OURS.manifest(b"manifest"))


def test_a_sites_key_goes_with_the_coordinators(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = tmp_path / "site.pub"
    site.write_bytes(OURS.public_pem)
    words = ["--broker", "mqtt://127.0.0.1:1", "--federation", "fed", "--device", "pi-1", "--data", str(tmp_path)]
    words += ["--store", str(tmp_path / "store")]
    assert main(["agent", *words, "--trust-site", str(site)]) == 2
    assert "--trust-site: the key of a site's relay goes with --trust" in capsys.readouterr().err
