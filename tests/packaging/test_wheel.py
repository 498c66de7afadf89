"""The wheel as somebody without a checkout has it: complete, and the demo runs from an empty folder."""

from __future__ import annotations

import zipfile

import pytest

from edge.contracts.release import RELEASE
from tests.packaging.conftest import InstalledWheel

pytestmark = pytest.mark.slow

PACKAGES = ("apportion", "coordinator", "edge", "export", "profiles")


def test_wheel_holds_the_packages_with_their_types_and_data_and_nothing_of_the_tests(installed: InstalledWheel) -> None:
    with zipfile.ZipFile(installed.wheel) as archive:
        names = set(archive.namelist())
    info = f"apportion-{RELEASE}.dist-info"
    assert {name.partition("/")[0] for name in names} == {*PACKAGES, info}
    data = [
        "apportion/__init__.pyi",
        "coordinator/cli/demo.toml",
        "coordinator/dashboard/page/index.html",
        "coordinator/dashboard/page/main.js",
        "coordinator/dashboard/page/dashboard.css",
        "profiles/catalog/pi-4-4gb.toml",
        "edge/runtimes/executorch/native/session.cpp",
    ]
    page = ["edge/web/dist/index.html", "edge/web/dist/licences.txt"]
    licences = [f"{info}/licenses/{name}" for name in ("LICENSE", "NOTICE")]
    typed = [f"{package}/py.typed" for package in PACKAGES]
    assert [name for name in (*data, *page, *licences, *typed) if name not in names] == []
    assert [name for name in names if name.startswith("edge/web/") and "/dist/" not in name] == []


def test_wheel_says_its_release_and_which_pythons_it_runs_on(installed: InstalledWheel) -> None:
    asked = (
        "from importlib.metadata import metadata; m = metadata('apportion'); print(m['Version'], m['Requires-Python'])"
    )
    assert installed.run("-c", asked, python=True).stdout.split() == [RELEASE, "<3.15,>=3.11"]
    assert installed.run("--version").stdout == f"apportion {RELEASE}\n"


def test_demo_runs_from_the_wheel_in_an_empty_folder(installed: InstalledWheel) -> None:
    code = installed.run("-c", "import coordinator, edge; print(coordinator.__file__)", python=True).stdout
    assert code.strip() == str(installed.packages / "coordinator" / "__init__.py")
    summary = installed.values("demo", "--quiet")
    assert (summary["rounds"], summary["devices"], summary["levels"]) == (10, 8, 3)
    assert summary["accuracy"] > 0.9  # 0.96 measured; guessing gives 0.1
    run = installed.folder / summary["run_dir"]
    assert (run / "checkpoints" / "final.safetensors").is_file()
    assert sorted(path.name for path in installed.folder.iterdir() if not path.name.startswith(".")) == ["runs"]


def test_doctor_finds_the_page_for_phones_in_the_wheel(installed: InstalledWheel) -> None:
    findings = installed.values("doctor")["findings"]
    (page,) = [finding for finding in findings if finding["name"] == "page for phones"]
    assert page["state"] == "ok"
    assert page["detail"].startswith("built, ")


def test_completion_of_a_verb_is_offered_to_the_shell(installed: InstalledWheel) -> None:
    assert "_APPORTION_COMPLETE=complete_bash" in installed.run("--show-completion", "bash").stdout
