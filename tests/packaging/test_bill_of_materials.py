"""The bill of materials: valid CycloneDX, complete, and each component with its licence."""

from __future__ import annotations

import json
import shutil
from email.message import Message
from importlib.metadata import version
from typing import Any

import pytest
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from edge.contracts.release import RELEASE
from tests.packaging.bill_of_materials import WEB, NoLicence, bill_of_materials, licence, page_packages

PAGE = {
    "components": [
        {
            "name": "@noble/curves",
            "version": "1.9.7",
            "purl": "pkg:npm/%40noble/curves@1.9.7",
            "licenses": [{"license": {"id": "MIT"}}],
        }
    ]
}


def written(page: dict[str, object] | None) -> dict[str, Any]:
    text = JsonV1Dot6(bill_of_materials(page)).output_as_string()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    values: dict[str, Any] = json.loads(text)
    return values


def test_bill_names_the_wheel_its_page_s_packages_and_what_is_installed_beside_it() -> None:
    values = written(PAGE)
    assert values["metadata"]["component"]["purl"] == f"pkg:pypi/apportion@{RELEASE}"
    found = {c["purl"]: c for c in values["components"]}
    assert found["pkg:npm/%40noble/curves@1.9.7"]["scope"] == "required"
    numpy = found[f"pkg:pypi/numpy@{version('numpy')}"]
    assert numpy["scope"] == "optional"
    names = {c["name"] for c in values["components"]}
    assert {"torch", "onnxruntime", "paho-mqtt", "cryptography", "starlette", "psycopg"} <= names
    assert not {"apportion", "pytest", "timm"} & names
    assert [c["name"] for c in values["components"] if not c.get("licenses")] == []


def test_wheel_without_the_page_has_no_packages_of_it() -> None:
    assert [c for c in written(None)["components"] if c["purl"].startswith("pkg:npm/")] == []


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed here (Debian: npm)")
def test_every_package_that_the_page_names_is_in_the_bill() -> None:
    named = json.loads((WEB / "package.json").read_text())["dependencies"]
    found = {c["purl"].removeprefix("pkg:npm/").rpartition("@")[0] for c in written(page_packages())["components"]}
    assert {name.replace("@", "%40", 1) for name in named} <= found


def test_licence_is_an_expression_else_a_line_else_what_classifiers_say() -> None:
    metadata = Message()
    metadata["Classifier"] = "License :: OSI Approved :: MIT License"
    metadata["Classifier"] = "Programming Language :: Python"
    assert licence("x", metadata) == "MIT License"
    metadata["License"] = "a text\nof many lines"
    assert licence("x", metadata) == "MIT License"
    del metadata["License"]
    metadata["License"] = "BSD"
    assert licence("x", metadata) == "BSD"
    metadata["License-Expression"] = "MIT AND 0BSD"
    assert licence("x", metadata) == "MIT AND 0BSD"


def test_package_without_a_licence_is_an_error_with_its_name() -> None:
    with pytest.raises(NoLicence, match=r"^odd: its metadata name no licence"):
        licence("odd", Message())
    with pytest.raises(NoLicence, match=r"^curves: its package names no licence"):
        bill_of_materials({"components": [{**PAGE["components"][0], "name": "curves", "licenses": []}]})
