"""The page and the code say the same: kinds, fields, limits, and every golden vector."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from edge.contracts import topics
from edge.contracts.envelope import MAX_MESSAGE_BYTES, VERSION
from edge.contracts.manifest import MANIFEST_SCHEMA, SelfTest
from edge.contracts.messages import BODIES
from edge.contracts.plan import BlobRef, Schedule, Turn, assignment_id
from edge.contracts.signing import ORDER_CONTEXT, SIGNATURE_BYTES
from edge.contracts.streams import drawn_value, permutation, self_test_value, splitmix64, stream_seed, uniform
from edge.contracts.tensors import TensorSpec
from edge.identity.trust import Trust
from edge.serving.publisher import MAX_BLOCK_BYTES
from edge.training.batches import BatchOrder
from tests.contracts.samples import ORDER

PAGE = (Path(__file__).parents[2] / "docs" / "wire-protocol.md").read_text(encoding="utf-8")
VECTORS: dict[str, Any] = json.loads(PAGE.split("```json vectors\n")[1].split("```")[0])


def fields(struct: type) -> list[str]:
    return [field.name for field in msgspec.structs.fields(struct)]


def reference_splitmix64(seed: int, count: int) -> list[int]:
    """The page's four lines in plain integers, as an agent in another language would write them."""
    mask, out = (1 << 64) - 1, []
    for i in range(1, count + 1):
        z = (seed + i * 0x9E3779B97F4A7C15) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        out.append(z ^ (z >> 31))
    return out


def test_table_of_kinds_is_the_codes() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (device|coordinator|both) \| (.*) \|$", PAGE, re.M)
    assert {kind: re.findall(r"`(\w+)`", names) for kind, _, names in rows} == {
        kind: fields(struct) for kind, struct in BODIES.items()
    }


def test_named_structs_and_limits_are_the_codes() -> None:
    assert f"{{{', '.join(fields(BlobRef))}}}" in PAGE
    assert f"{{{', '.join(fields(Schedule))}}}" in PAGE
    assert f"{{{', '.join(fields(Turn))}}}" in PAGE
    assert f"at most {MAX_MESSAGE_BYTES:,} bytes" in PAGE
    assert f"{MAX_BLOCK_BYTES:,} bytes" in PAGE
    assert f"version {VERSION}," in PAGE
    assert f"`{MANIFEST_SCHEMA}`" in PAGE
    assert f"`{topics.up('<federation>', '<device>', '<kind>')}`" in PAGE
    assert f"`{topics.down('<federation>', '<device>', '<kind>')}`" in PAGE
    assert f"`{topics.everyone('<federation>', '<kind>')}`" in PAGE
    assert f"`{msgspec.structs.fields(SelfTest)[0].type.__args__[0]}`" in PAGE


@pytest.mark.parametrize("vector", VECTORS["stream_seed"])
def test_stream_seed_is_the_pages(vector: list[Any]) -> None:
    assert stream_seed(*vector[:4]) == int(vector[4])


@pytest.mark.parametrize("vector", VECTORS["splitmix64"])
def test_splitmix64_is_the_pages_and_the_published_one(vector: list[Any]) -> None:
    seed, expected = int(vector[0]), [int(value) for value in vector[1]]
    assert splitmix64(seed, 3).tolist() == expected
    assert reference_splitmix64(seed, 3) == expected


@pytest.mark.parametrize("vector", VECTORS["uniform"])
def test_uniform_is_the_pages(vector: list[Any]) -> None:
    assert uniform(int(vector[0]), 3).tolist() == vector[1]
    assert [(z >> 11) * 2.0**-53 for z in reference_splitmix64(int(vector[0]), 3)] == vector[1]


@pytest.mark.parametrize("vector", VECTORS["permutation"])
def test_permutation_is_the_pages(vector: list[Any]) -> None:
    seed, count, expected = int(vector[0]), vector[1], vector[2]
    assert permutation(seed, count).tolist() == expected
    order, draws = list(range(count)), iter(reference_splitmix64(seed, count))
    for i in range(count - 1, 0, -1):
        j = next(draws) % (i + 1)
        order[i], order[j] = order[j], order[i]
    assert order == expected


@pytest.mark.parametrize("vector", VECTORS["assignment_id"])
def test_assignment_id_is_the_pages(vector: list[Any]) -> None:
    assert assignment_id(*vector[:5]) == vector[5]


def test_signatures_are_the_pages() -> None:
    vectors = VECTORS["signatures"]
    key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(vectors["public_key"]))
    trust = Trust([key])
    manifest, body = (bytes.fromhex(vectors[kind]["hex"]) for kind in ("manifest", "order"))
    signatures = [bytes.fromhex(vectors[kind]["signature"]) for kind in ("manifest", "order")]
    trust.check_manifest(manifest, signatures[0])
    trust.check_order(ORDER, body, signatures[1])
    key.verify(signatures[1], b"apportion.order/1\n" + body)
    assert [len(signature) for signature in signatures] == [SIGNATURE_BYTES] * 2
    assert f"`{ORDER_CONTEXT.decode().strip()}`" in PAGE


@pytest.mark.parametrize("vector", VECTORS["batches"])
def test_batches_are_the_pages(vector: dict[str, Any]) -> None:
    order = BatchOrder(vector["examples"], vector["batch"], vector["last_batch"], int(vector["data_seed"]))
    found = [batch.tolist() for batch in order.batches(len(vector["batches"]))]
    assert found == vector["batches"]


@pytest.mark.parametrize("vector", VECTORS["draws"], ids=lambda vector: vector["name"])
def test_draws_are_the_pages(vector: dict[str, Any]) -> None:
    name, dtype = vector["name"], vector["dtype"]
    spec = TensorSpec(name, tuple(vector["shape"]), dtype, "draw", probability=vector["probability"])
    found = drawn_value(spec, int(vector["seed"]), vector["step"], vector["batch"])
    assert found.dtype.name == dtype
    assert found.ravel().tolist() == vector["value"]
    outputs = reference_splitmix64(
        stream_seed(int(vector["seed"]), "draw", vector["step"], name), (found.size + 1) // 2
    )
    lanes = [lane >> 8 for z in outputs for lane in (z & 0xFFFFFFFF, z >> 32)][: found.size]
    below = math.floor(2**24 * vector["probability"] + 0.5)
    assert vector["value"] == [k < below if dtype == "bool" else k / 2**24 for k in lanes]


def test_a_long_draw_is_one_stream() -> None:
    """It is made in pieces of 2^15 elements."""
    spec = TensorSpec("drop#draw", ("batch", 40_001), "bool", "draw", probability=0.5)
    found = drawn_value(spec, 3, 1, 2)
    outputs = reference_splitmix64(stream_seed(3, "draw", 1, "drop#draw"), 40_001)
    lanes = [lane >> 8 for z in outputs for lane in (z & 0xFFFFFFFF, z >> 32)]
    np.testing.assert_array_equal(found.ravel(), np.asarray(lanes) < 2**23)
    assert found[:1].tobytes() == drawn_value(spec, 3, 1, 1).tobytes(), "a smaller batch draws the first examples"


@pytest.mark.parametrize("vector", VECTORS["self_test"]["tensors"], ids=lambda vector: vector["name"])
def test_self_test_values_are_the_pages(vector: dict[str, Any]) -> None:
    test = VECTORS["self_test"]
    probability = vector.get("probability", 0.0)
    spec = TensorSpec(vector["name"], tuple(vector["shape"]), vector["dtype"], vector["role"], probability=probability)
    scale = {name: vector[name] for name in ("bias", "gain") if name in vector}
    value = self_test_value(spec, test["seed"], test["batch"], high=test["high"], **scale)
    assert value.dtype.name == vector["dtype"]
    np.testing.assert_array_equal(value.ravel(), np.asarray(vector["value"], dtype=vector["dtype"]))


def test_self_test_formula_of_a_matrix_is_the_tables() -> None:
    vector = VECTORS["self_test"]["tensors"][0]
    draws = reference_splitmix64(stream_seed(5, "self-test", 0, vector["name"]), 6)
    expected = [(2 * (z >> 11) * 2.0**-53 - 1) / math.sqrt(3) for z in draws]
    np.testing.assert_array_equal(np.asarray(expected, np.float32), np.asarray(vector["value"], np.float32))
