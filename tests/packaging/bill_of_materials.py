"""What a wheel is made of and needs, as a CycloneDX file: ``python -m tests.packaging.bill_of_materials --out FILE``.

The packages that the page for phones bundles are named by npm from its lock file; those that pip installs beside the
wheel by what is installed here, in the releases that are here. A package that names no licence is an error.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
from collections.abc import Iterator
from importlib.metadata import PackageMetadata, distribution
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from edge.contracts.release import RELEASE

WEB = Path(__file__).parents[2] / "edge/web"
EXTRAS = ("onnxruntime", "identity", "images", "coordinator", "privacy", "postgresql", "fleet")
"""What is installed beside a wheel for devices and coordinators; without torch's CUDA, which is each machine's own."""


class NoLicence(Exception):
    """A package does not say under which licence it comes."""


def bill_of_materials(page: dict[str, object] | None) -> Bom:
    """The wheel as the subject, its page's packages and what it needs as components.

    Args:
        page: what npm says of the page's packages; None for a wheel without the page.

    Raises:
        NoLicence: a package names none.
    """
    bom = Bom()
    wheel = Component(
        name="apportion",
        version=RELEASE,
        type=ComponentType.LIBRARY,
        bom_ref="apportion",
        purl=PackageURL("pypi", name="apportion", version=RELEASE),
        licenses=[LicenseFactory().make_from_string("Apache-2.0")],
    )
    bom.metadata.component = wheel
    installed = [_installed(name) for name in sorted(_needed("apportion", EXTRAS))]
    bundled = [] if page is None else _of_page(page)
    for component in (*bundled, *installed):
        bom.components.add(component)
    bom.register_dependency(wheel, [*bundled, *installed])
    return bom


def page_packages() -> dict[str, object] | None:
    """npm's own list of the packages that the page needs at run time; None where there is no npm."""
    if shutil.which("npm") is None:
        return None
    words = ["npm", "sbom", "--package-lock-only", "--omit", "dev", "--sbom-format", "cyclonedx"]
    said = subprocess.run(words, cwd=WEB, capture_output=True, text=True, check=True).stdout
    found: dict[str, object] = json.loads(said)
    return found


def _needed(name: str, extras: tuple[str, ...]) -> set[str]:
    """Names of all packages that ``name[extras]`` brings here, itself left out."""
    found: set[str] = set()
    waiting = [(name, extra) for extra in ("", *extras)]
    seen = set(waiting)
    while waiting:
        package, extra = waiting.pop()
        for line in distribution(package).requires or []:
            wanted = Requirement(line)
            if wanted.marker is not None and not wanted.marker.evaluate({"extra": extra}):
                continue
            found.add(canonicalize_name(wanted.name))
            for step in ((wanted.name, more) for more in ("", *wanted.extras)):
                if step not in seen:
                    seen.add(step)
                    waiting.append(step)
    return found - {name}


def _installed(name: str) -> Component:
    package = distribution(name)
    release = package.version.partition("+")[0]
    return Component(
        name=name,
        version=release,
        type=ComponentType.LIBRARY,
        scope=ComponentScope.OPTIONAL,  # beside the wheel, not in it
        bom_ref=f"pypi/{name}",
        purl=PackageURL("pypi", name=name, version=release),
        licenses=[LicenseFactory().make_from_string(licence(name, package.metadata))],
    )


def licence(name: str, metadata: PackageMetadata) -> str:
    """The licence that the package names: an expression, a line of its own, or those of its classifiers.

    Raises:
        NoLicence: there is none of the three.
    """
    expression = metadata.get("License-Expression")
    if expression:
        return str(expression)
    line = str(metadata.get("License") or "").strip()
    if line and "\n" not in line and len(line) < 100:
        return line
    kinds = [c.rpartition(" :: ")[2] for c in metadata.get_all("Classifier") or [] if c.startswith("License :: ")]
    if not kinds:
        raise NoLicence(f"{name}: its metadata name no licence; leave the package out, or ask its authors")
    return " or ".join(kinds)


def _of_page(page: dict[str, object]) -> list[Component]:
    return sorted(_packages(page), key=lambda component: component.name)


def _packages(page: dict[str, object]) -> Iterator[Component]:
    packages = page["components"]
    assert isinstance(packages, list)
    for package in packages:
        names = [entry["license"].get("id") or entry["license"]["name"] for entry in package.get("licenses", [])]
        group, _, name = package["name"].rpartition("/")
        if not names:
            raise NoLicence(f"{package['name']}: its package names no licence; leave it out, or ask its authors")
        yield Component(
            name=name,
            group=group or None,
            version=package["version"],
            type=ComponentType.LIBRARY,
            scope=ComponentScope.REQUIRED,
            bom_ref=f"npm/{package['name']}",
            purl=PackageURL.from_string(package["purl"]),
            licenses=[LicenseFactory().make_from_string(word) for word in names],
        )


def main() -> None:
    """Write the file that is asked for."""
    parser = argparse.ArgumentParser(description="Write the bill of materials of the wheel, as CycloneDX 1.6.")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    out = parser.parse_args().out
    page = page_packages()
    bom = bill_of_materials(page)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(JsonV1Dot6(bom).output_as_string(indent=2) + "\n")
    bundled = "" if page is not None else "; without the page's packages: no npm here"
    print(f"{out}: {len(bom.components)} components{bundled}")


if __name__ == "__main__":
    main()
