"""Manifests from outside: cut, changed, contradicting themselves, or naming files that are none of theirs."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge.contracts.errors import (
    ApportionError,
    MessageRejected,
    UnsupportedVersion,
)
from edge.contracts.manifest import MAX_MANIFEST_BYTES, ArtifactManifest
from tests.contracts.samples import MANIFEST

FUZZ = settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def manifest_with(**changes: Any) -> bytes:
    return json.dumps(json.loads(MANIFEST.to_bytes()) | changes).encode()


def test_manifest_cut_at_any_byte_is_rejected() -> None:
    data = MANIFEST.to_bytes()
    for length in range(len(data)):
        with pytest.raises(MessageRejected):
            ArtifactManifest.from_bytes(data[:length])


def test_manifest_over_the_limit_is_not_parsed() -> None:
    with pytest.raises(MessageRejected, match="over the limit"):
        ArtifactManifest.from_bytes(b" " * (MAX_MANIFEST_BYTES + 1))


@pytest.mark.parametrize("schema", ["apportion.manifest/2", "", "APPORTION.MANIFEST/1"])
def test_manifest_of_another_schema_is_refused_by_its_own_code(schema: str) -> None:
    with pytest.raises(UnsupportedVersion, match=r"this release reads 'apportion.manifest/1'"):
        ArtifactManifest.from_bytes(manifest_with(schema=schema))


def test_manifest_with_an_unknown_field_is_read() -> None:
    assert ArtifactManifest.from_bytes(manifest_with(novelty={"a": [1]})) == MANIFEST


@pytest.mark.parametrize(
    "name",
    ["../train.onnx", "a/b.onnx", "/etc/passwd", "..", ".hidden", "a\0b", "a\nb", "C:\\x", "a..onnx", "", "x" * 101],
)
def test_manifest_file_name_that_leaves_the_folder_is_refused(name: str) -> None:
    files = [{"name": name, "sha256": "a" * 64, "size": 1}]
    with pytest.raises(MessageRejected, match="not a plain name"):
        ArtifactManifest.from_bytes(manifest_with(files=files, programs=[]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"files": [{"name": "a", "sha256": "../x", "size": 1}], "programs": []}, "64 lower-case hex digits"),
        ({"files": [{"name": "a", "sha256": "a" * 64, "size": -1}], "programs": []}, "has size -1"),
        ({"files": [{"name": "a", "sha256": "a" * 64, "size": 1}] * 2, "programs": []}, "appears twice"),
        ({"files": []}, "names file 'train.onnx'"),
        ({"tensors": []}, "that are not in the manifest"),
        (
            {"tensors": [{"name": "x", "shape": [-1], "dtype": "float32", "role": "input"}], "programs": []},
            "sizes must be",
        ),
        (
            {"tensors": [{"name": "x", "shape": [2**41], "dtype": "float32", "role": "input"}], "programs": []},
            "must be",
        ),
        (
            {"tensors": [{"name": "x", "shape": ["n"], "dtype": "float32", "role": "input"}], "programs": []},
            "cannot be read",
        ),
        (
            {"tensors": [{"name": "x", "shape": [1], "dtype": "object", "role": "input"}], "programs": []},
            "cannot be read",
        ),
        ({"batch": "many"}, "cannot be read"),
        ({"norm": "layer"}, "cannot be read"),
    ],
)
def test_manifest_that_contradicts_itself_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(MessageRejected, match=message):
        ArtifactManifest.from_bytes(manifest_with(**change))


def test_manifest_with_a_tensor_named_twice_is_refused() -> None:
    spec = {"name": "x", "shape": [1], "dtype": "float32", "role": "input"}
    with pytest.raises(MessageRejected, match="a tensor name appears twice"):
        ArtifactManifest.from_bytes(manifest_with(tensors=[spec, spec], programs=[]))


def test_manifest_with_deep_build_options_is_refused() -> None:
    data = MANIFEST.to_bytes().replace(b'"build":{', b'"build":{"x":' + b"[" * 50_000 + b"]" * 50_000 + b",", 1)
    with pytest.raises(MessageRejected):
        ArtifactManifest.from_bytes(data)


@pytest.mark.slow
@FUZZ
@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=6))
def test_changed_bytes_of_a_manifest_never_escape_as_another_error(changes: list[tuple[int, int]]) -> None:
    data = bytearray(MANIFEST.to_bytes())
    for place, value in changes:
        data[place % len(data)] = value
    with contextlib.suppress(ApportionError):
        ArtifactManifest.from_bytes(bytes(data))


@pytest.mark.slow
@FUZZ
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
        max_leaves=8,
    )
)
def test_any_json_in_place_of_a_manifests_parts_never_escapes(value: Any) -> None:
    for field in ("programs", "tensors", "files", "input", "cost", "build", "schema", "self_test"):
        with contextlib.suppress(ApportionError):
            ArtifactManifest.from_bytes(manifest_with(**{field: value}))
