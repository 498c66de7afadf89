"""Whose orders are followed: the trusted key's, and nobody else's."""

from __future__ import annotations

import hashlib

from coordinator.conformance.findings import Failed, NotApplicable, expect
from coordinator.conformance.kit import Job, Kit
from coordinator.conformance.registry import scenario
from coordinator.conformance.scenarios.endless_work import running
from edge.contracts.codec import encode_msgpack
from edge.contracts.signing import message_text

SIGNATURES = "Signatures"
CODE = "bad-signature"


def _refused(kit: Kit, job: Job, since: int) -> str:
    seen = kit.refusal(job, CODE, since=since)
    accepted = [s for s in kit.script.since(since, "accept") if getattr(s.body, "assignment_id", "") == job.id]
    expect(not accepted, "it was accepted first")
    return seen


@scenario(SIGNATURES)
def order_without_a_signature(kit: Kit) -> str:
    """An order that nobody signed."""
    kit.agent()
    job, mark = kit.job("masked"), kit.script.mark()
    kit.script.send("order", job.order)
    return _refused(kit, job, mark)


@scenario(SIGNATURES)
def order_signed_by_another_key(kit: Kit) -> str:
    """An order with a sound signature by a key that the agent was not given."""
    kit.agent()
    job = kit.job("masked")
    return _refused(kit, job, kit.order(job, key=kit.site.forger))


@scenario(SIGNATURES)
def order_changed_after_it_was_signed(kit: Kit) -> str:
    """One field differs from what was signed."""
    kit.agent()
    first, second = kit.job("masked"), kit.job("masked")
    signature = kit.key.order(encode_msgpack(first.order))
    mark = kit.script.mark()
    kit.script.send("order", second.order, sign=lambda body: signature)
    return _refused(kit, second, mark)


@scenario(SIGNATURES)
def order_signed_as_a_manifest(kit: Kit) -> str:
    """A signature without the order's context is none of an order."""
    kit.agent()
    job, mark = kit.job("masked"), kit.script.mark()
    kit.script.send("order", job.order, sign=kit.key.manifest)
    return _refused(kit, job, mark)


@scenario(SIGNATURES)
def manifest_without_a_signature(kit: Kit) -> str:
    """The order is signed, its manifest is not."""
    kit.agent()
    job = kit.job("masked", artifact_signature=b"")
    return kit.refusal(job, CODE, since=kit.order(job))


@scenario(SIGNATURES)
def manifest_signed_by_another_key(kit: Kit) -> str:
    """The signature of the manifest is by a key that the agent was not given."""
    kit.agent()
    data = kit.artifacts.get("masked").data
    job = kit.job("masked", artifact_signature=kit.site.forger.manifest(data))
    return kit.refusal(job, CODE, since=kit.order(job))


@scenario(SIGNATURES)
def forgery_under_the_assignment_in_hand(kit: Kit) -> str:
    """A forged order under the id of the work in hand is answered with an error, and the work goes on."""
    kit.agent()
    job, _ = running(kit)
    forged = Job(job.artifact, kit.job("masked", assignment_id=job.id).order, job.weights, job.constants)
    mark = kit.order(forged, key=kit.site.forger)
    error = kit.wait("error", "refuse", since=mark)
    expect(error.kind == "error", f"refused: a forger could end real work ({error.body})")
    expect(error.body.code == CODE, f"error {error.body.code!r}")
    hello = kit.asked()
    expect((hello.state, hello.assignment_id) == ("training", job.id), f"{hello.state} with {hello.assignment_id!r}")
    return "error bad-signature, still training"


@scenario(SIGNATURES)
def messages_of_the_device_are_signed(kit: Kit) -> str:
    """Where the device has a key, each of its messages is signed with it, for its topic and message id."""
    kit.agent()
    spki = kit.driver.public_key()
    if not spki:
        raise NotApplicable("this agent signs no messages: a certificate says who it is")
    job = kit.job("masked", seed=5)
    mark = kit.order(job)
    kit.finish(job, since=mark)
    checked = 0
    for seen in kit.script.since(mark):
        if seen.envelope is None:
            raise Failed(f"a message of kind {seen.kind} cannot be read: {seen.body}")
        # A last will is laid down before there is anything to say; it is signed all the same.
        _check_message(
            spki, kit, seen.envelope.kind, seen.envelope.id, bytes(seen.envelope.body), seen.envelope.signature
        )
        checked += 1
    return f"{checked} messages, all signed"


def _check_message(spki: bytes, kit: Kit, kind: str, message_id: str, body: bytes, signature: bytes) -> None:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import load_der_public_key

    key = load_der_public_key(spki)
    if not isinstance(key, EllipticCurvePublicKey):
        raise Failed(f"the device's key is a {type(key).__name__}, ECDSA P-256 is wanted")
    expect(len(signature) == 64, f"{kind}: a signature of {len(signature)} bytes, 64 wanted")
    there = kit.site.connection
    text = message_text(there.federation, there.device, kind, message_id, body)
    der = encode_dss_signature(int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:], "big"))
    try:
        key.verify(der, text, ECDSA(SHA256()))
    except InvalidSignature as error:
        digest = hashlib.sha256(body).hexdigest()[:12]
        raise Failed(f"{kind} {message_id}: not signed by this device (body {digest})") from error
