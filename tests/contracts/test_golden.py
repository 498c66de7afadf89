"""Old bytes are still read, and today's bytes are the checked-in ones; every struct is in one of the files."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from edge.contracts.claims import ClaimLink
from edge.contracts.envelope import unseal
from edge.contracts.inference import InferenceManifest
from edge.contracts.language import LanguageManifest
from edge.contracts.manifest import ArtifactManifest
from edge.contracts.messages import BODIES as BODY_TYPES
from edge.contracts.tensor_file import decode_tensors
from tests.contracts.golden_files import today, versions
from tests.contracts.samples import BODIES, CLAIM_LINK, CLAIMS, INFERENCE, LANGUAGE, MANIFEST, TENSORS

CONTRACTS = Path(__file__).parents[2] / "edge" / "contracts"


def structs_in(value: Any) -> set[type]:
    """The struct types found in a value."""
    if isinstance(value, msgspec.Struct):
        inside = (structs_in(getattr(value, name)) for name in value.__struct_fields__)
        return {type(value)}.union(*inside)
    if isinstance(value, tuple | list):
        return set().union(*map(structs_in, value))
    if isinstance(value, dict):
        return set().union(*map(structs_in, value.values()))
    return set()


@pytest.mark.parametrize("name", today())
def test_todays_bytes_are_the_newest_golden_file(name: str) -> None:
    assert versions(name)[-1].read_bytes() == today()[name], (
        "a contract changed: if a field was added, write the next golden file with "
        "`python -m tests.contracts.golden_files`; anything else breaks agents that are out there"
    )


@pytest.mark.parametrize("kind", BODIES)
def test_every_golden_message_is_read(kind: str) -> None:
    for path in versions(f"{kind}.msgpack"):
        envelope = unseal(path.read_bytes())
        assert (envelope.v, envelope.id, envelope.kind) == (1, "00112233445566778899aabbccddeeff", kind)
        body = envelope.read(BODY_TYPES[kind])
        if path == versions(f"{kind}.msgpack")[-1]:
            assert body == BODIES[kind]


def test_every_golden_inference_manifest_is_read() -> None:
    for path in versions("inference.json"):
        InferenceManifest.from_bytes(path.read_bytes())
    assert InferenceManifest.from_bytes(versions("inference.json")[-1].read_bytes()) == INFERENCE


def test_every_golden_language_manifest_is_read() -> None:
    for path in versions("language.json"):
        LanguageManifest.from_bytes(path.read_bytes())
    assert LanguageManifest.from_bytes(versions("language.json")[-1].read_bytes()) == LANGUAGE
    assert len(LANGUAGE.files) == 3


def test_every_golden_manifest_is_read() -> None:
    for path in versions("manifest.json"):
        assert ArtifactManifest.from_bytes(path.read_bytes()).export_key == MANIFEST.export_key
    assert ArtifactManifest.from_bytes(versions("manifest.json")[-1].read_bytes()) == MANIFEST


@pytest.mark.parametrize("name", CLAIMS)
def test_every_golden_claim_is_read(name: str) -> None:
    for path in versions(f"{name}.json"):
        assert type(CLAIMS[name]).from_bytes(path.read_bytes()) == CLAIMS[name]


def test_golden_claim_link_is_read() -> None:
    for path in versions("claim_link.txt"):
        assert ClaimLink.from_text(path.read_text()) == CLAIM_LINK


def test_golden_tensors_are_read_bit_for_bit() -> None:
    arrays = decode_tensors(versions("tensors.safetensors")[-1].read_bytes(), where="golden")
    assert sorted(arrays) == sorted(TENSORS)
    for name, array in arrays.items():
        assert (array.dtype, array.shape) == (TENSORS[name].dtype, TENSORS[name].shape)
        np.testing.assert_array_equal(array, TENSORS[name])


def test_every_kind_has_a_sample_and_every_struct_is_in_one() -> None:
    assert set(BODIES) == set(BODY_TYPES)
    shown = structs_in(MANIFEST).union(
        *map(structs_in, [*BODIES.values(), *CLAIMS.values(), CLAIM_LINK, INFERENCE, LANGUAGE])
    )
    defined: set[type] = set()
    for path in CONTRACTS.glob("*.py"):
        module = importlib.import_module(f"edge.contracts.{path.stem}")
        members = (value for key, value in vars(module).items() if not key.startswith("_"))
        defined |= {
            value
            for value in members
            if isinstance(value, type) and issubclass(value, msgspec.Struct) and value.__module__ == module.__name__
        }
        assert not any(dataclasses.is_dataclass(value) for value in vars(module).values())
    # The envelope is around every message.
    assert {struct.__name__ for struct in defined - shown} == {"Envelope"}


def test_samples_show_every_field_with_a_value_of_its_own() -> None:
    def check(value: Any) -> None:
        if isinstance(value, msgspec.Struct):
            for field in msgspec.structs.fields(value):
                if field.default is not msgspec.NODEFAULT and field.name not in (
                    "schema",
                    "advance_batch",
                    "dtype",
                    "epochs",
                ):
                    seen[type(value).__name__, field.name].append(getattr(value, field.name) != field.default)
                check(getattr(value, field.name))
        elif isinstance(value, tuple | list):
            for entry in value:
                check(entry)

    class Seen(dict[tuple[str, str], list[bool]]):
        def __missing__(self, key: tuple[str, str]) -> list[bool]:
            return self.setdefault(key, [])

    seen = Seen()
    check(MANIFEST)
    for body in [*BODIES.values(), *CLAIMS.values(), CLAIM_LINK]:
        check(body)
    assert [key for key, differs in seen.items() if not any(differs)] == []


def test_structs_are_frozen() -> None:
    for struct in structs_in(MANIFEST).union(*map(structs_in, [*BODIES.values(), *CLAIMS.values(), CLAIM_LINK])):
        assert struct.__struct_config__.frozen, struct  # type: ignore[attr-defined]
