"""The wheel as somebody without a checkout has it: complete, and the demo runs from an empty folder."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import zipfile
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from edge.contracts.release import RELEASE
from tests.packaging.conftest import BUILT_PAGE, InstalledWheel

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


@pytest.mark.broker
@pytest.mark.runtime
def test_own_model_is_run_from_the_wheel_and_its_page_is_served(installed: InstalledWheel) -> None:
    project = installed.folder.parent / "sensors"
    installed.values("init", str(project))
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    for words in (("init", "identity"), ("issue-coordinator", "sensors")):
        assert installed.run("ca", *words, folder=project).returncode == 0
    with (project / "run.toml").open("a") as file:
        file.write(f'\n[broker]\nweb = "{address}"\nidentity = "identity"\n')
    with installed.started("run", "run.toml", "--run-dir", "run", "--json", folder=project) as run:
        page = wait_for_page(address, run)
        assert json.loads(run.communicate(timeout=300)[0].splitlines()[-1])["accuracy"] > 0.9  # 0.98 measured
    assert page == (installed.packages / BUILT_PAGE / "index.html").read_text()


def wait_for_page(address: str, server: subprocess.Popen[str]) -> str:
    """What is served at ``address`` as soon as it is; fails when ``server`` ends before."""
    while True:
        try:
            with urlopen(address, timeout=10) as answer:
                return str(answer.read().decode())
        except URLError:
            assert server.poll() is None, server.communicate()[1]
            time.sleep(0.1)


def test_doctor_finds_the_page_for_phones_in_the_wheel(installed: InstalledWheel) -> None:
    findings = installed.values("doctor")["findings"]
    (page,) = [finding for finding in findings if finding["name"] == "page for phones"]
    assert page["state"] == "ok"
    assert page["detail"].startswith("built, ")


def test_completion_of_a_verb_is_offered_to_the_shell(installed: InstalledWheel) -> None:
    assert "_APPORTION_COMPLETE=complete_bash" in installed.run("--show-completion", "bash").stdout
