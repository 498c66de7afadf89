"""The packages of a device: what is in them, that they are fetched once, and what cannot be had is told."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from coordinator.fleet import wheelhouse
from coordinator.fleet.device_wheel import requirements, write_device_wheel, write_wheel
from coordinator.fleet.facts import FoundPython, HostFacts
from coordinator.fleet.host import HostUnfit
from coordinator.fleet.native_wheels import CompilerMissing, compiler_for, portable_library, slim_wheel
from coordinator.fleet.wheelhouse import WheelsUnavailable, build_wheelhouse
from edge.contracts.errors import ConfigError
from edge.contracts.release import RELEASE
from edge.runtimes.executorch import build
from tests.coordinator.fleet.small_wheels import bundled_pip, small_wheel


def facts(machine: str = "aarch64", python: tuple[int, int, int] = (3, 11, 2), glibc: int = 36) -> HostFacts:
    """A host that fits."""
    found = FoundPython(path="/usr/bin/python3", version=python, bits=64, is_whole=True, libc=f"glibc 2.{glibc}")
    return HostFacts(
        machine=machine,
        bits=64,
        libc="glibc",
        libc_version=(2, glibc),
        python=found,
        pythons=(found,),
        free_bytes=10**9,
        init="none",
        programs=frozenset(),
        is_termux=False,
        is_root=False,
        home="",
        has_folder=False,
        owner="",
        installed="",
    )


def contents(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_our_wheel_holds_the_device_side_alone(tmp_path: Path) -> None:
    files = contents(write_device_wheel(tmp_path))
    assert {name.split("/")[0] for name in files} == {"edge", "profiles", f"apportion-{RELEASE}.dist-info"}
    assert {
        "edge/agent.py",
        "edge/runtimes/executorch/native/session.cpp",
        "profiles/probe.py",
        "edge/py.typed",
    } <= set(files)
    assert any(name.startswith("profiles/catalog/") for name in files)
    assert not [name for name in files if "__pycache__" in name or b"import torch\n" in files[name]]
    metadata = files[f"apportion-{RELEASE}.dist-info/METADATA"].decode()
    assert 'Requires-Dist: cryptography>=43; extra == "identity"' in metadata
    assert "Dist: torch" not in metadata
    assert requirements()[0].startswith("msgspec")


def test_the_same_files_give_the_same_wheel(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    first, again = (write_device_wheel(tmp_path / name).read_bytes() for name in "ab")
    other = write_device_wheel(tmp_path / "b", {"lib/apportion/library.so": b"code"}).read_bytes()
    assert first == again
    assert first != other


@pytest.mark.slow
def test_pip_takes_our_wheel_as_whole(tmp_path: Path) -> None:
    """Its RECORD names every file by its digest; pip installs it and finds the command and the library."""
    wheel = write_device_wheel(tmp_path, {"lib/apportion/library.so": b"code"})
    target, pip = tmp_path / "installed", bundled_pip()
    command = [sys.executable, f"{pip}/pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
    # Without it pip takes what this interpreter has under the same name away, whatever the prefix.
    command.append("--ignore-installed")
    subprocess.run([*command, "--prefix", str(target), str(wheel)], check=True, capture_output=True)
    assert (target / "lib/apportion/library.so").read_bytes() == b"code"
    assert "edge.__main__" in (target / "bin/apportion").read_text()
    files = contents(wheel)
    record = files[f"apportion-{RELEASE}.dist-info/RECORD"].decode()
    assert {row[0] for row in csv.reader(io.StringIO(record))} == set(files)


@pytest.mark.slow
def test_a_host_of_another_processor_gets_its_wheels_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        with ThreadPoolExecutor() as together:
            made = [together.submit(build_wheelhouse, tmp_path, facts(), "onnxruntime") for _ in range(3)]
        first, *others = (future.result() for future in made)
    except WheelsUnavailable as reason:
        pytest.skip(f"no wheels can be fetched: {reason}")
    assert others == [first, first]
    names = sorted(first.digests)
    for name in ("numpy-", "onnxruntime-"):
        assert any(n.startswith(name) and n.endswith("_aarch64.whl") and "-cp311-" in n for n in names)
    for name in ("pillow-", "apportion-", "cryptography-", "pip-", "paho_mqtt-", "msgspec-", "safetensors-"):
        assert any(n.startswith(name) for n in names)
    assert not any(n.startswith(("torch", "onnx-", "asyncssh", "typer")) for n in names)
    assert 30 << 20 < first.packed_bytes < 80 << 20
    assert first.unpacked_bytes < 200 << 20
    print({name: (first.folder / name).stat().st_size for name in names}, first.unpacked_bytes)

    monkeypatch.setattr(wheelhouse, "_download", None)  # a second fetch would fail
    again = build_wheelhouse(tmp_path, facts(), "onnxruntime")
    assert again == first
    (first.folder / names[-1]).write_bytes(b"damaged")
    with pytest.raises(TypeError, match="NoneType"):
        build_wheelhouse(tmp_path, facts(), "onnxruntime")


def test_a_release_that_is_not_built_for_an_old_system_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index is a folder with another release for it, as for one that the newest wheels have left behind."""
    for name in ("msgspec", "numpy", "psutil"):
        small_wheel(tmp_path, name, b"")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(WheelsUnavailable, match=r"requirement \w+==.* \(it has other releases\)") as raised:
        wheelhouse._download(tmp_path / "got", ["numpy==99"], "3.11", ["manylinux_2_17_aarch64"])
    assert "too old for that release" in raised.value.hint


@pytest.mark.slow
def test_a_release_for_other_pythons_alone_gives_way_to_one_that_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator on a newer Python than its devices has releases that are not built for theirs."""
    for name in ("msgspec", "numpy", "runtime"):
        small_wheel(tmp_path, name, b"")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    wanted = {"numpy==99": "numpy>=1", "msgspec==1.0": "msgspec"}
    wheelhouse._download_near(tmp_path / "got", wanted, "3.11", ["manylinux_2_17_aarch64"])
    assert sorted(path.name.split("-")[0] for path in (tmp_path / "got").iterdir()) == ["msgspec", "numpy"]
    for kept in ({"runtime==99": "runtime==99"}, {"numpy==99": "numpy>=98"}):
        with pytest.raises(WheelsUnavailable, match="it has other releases"):
            wheelhouse._download_near(tmp_path / "got", kept, "3.11", ["manylinux_2_17_aarch64"])


def test_what_no_index_has_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(WheelsUnavailable, match=r"no wheels for Python 3.11 on manylinux2014_aarch64: .*from versions"):
        build_wheelhouse(tmp_path / "cache", facts(), "onnxruntime")
    assert not [path for path in (tmp_path / "cache").iterdir() if not path.name.endswith(".lock")]


def test_unknown_extras_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="sound is not known to devices; there is images"):
        build_wheelhouse(tmp_path, facts(), "onnxruntime", extras=("sound",))


def test_without_a_compiler_executorch_is_refused_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CompilerMissing, match=r"no .*g.. here to compile the executorch session for aarch64") as raised:
        build_wheelhouse(tmp_path / "cache", facts(), "executorch")
    assert "use the runtime onnxruntime" in raised.value.hint
    assert not (tmp_path / "cache").exists()


def test_of_the_executorch_wheel_the_libraries_and_the_licence_are_kept(tmp_path: Path) -> None:
    info = "executorch-1.5.1.dist-info"
    kept = {
        "executorch/lib/libexecutorch.so": b"1",
        "executorch/lib/libexecutorch_kernels_optimized.so": b"2",
        f"{info}/METADATA": b"Name: executorch",
        f"{info}/licenses/LICENSE": b"BSD",
    }
    whole = write_wheel(
        tmp_path / "executorch-1.5.1-py3-none-any.whl",
        {**kept, "executorch/backends/arm/tool.py": b"", "executorch/lib/libexecutorch_backend_xnnpack.so": b"3"},
    )
    (tmp_path / "slim").mkdir()
    files = contents(slim_wheel(build, whole, tmp_path / "slim"))
    record = files.pop(f"{info}/RECORD").decode()
    assert files == kept
    assert record.count("\n") == len(kept) + 1


def test_a_session_that_needs_a_newer_glibc_than_the_host_has_is_refused(tmp_path: Path) -> None:
    whole = tmp_path / "executorch-1.5.1-py3-none-any.whl"
    (tmp_path / build.portable_name("1.5.1")).write_bytes(b"\0GLIBC_2.17\0GLIBC_2.32\0GLIBCXX_3.4.19\0")
    assert portable_library(build, whole, facts(glibc=36), tmp_path).name == build.portable_name("1.5.1")
    with pytest.raises(HostUnfit, match=r"glibc 2\.31, and the executorch session compiled here needs 2\.32"):
        portable_library(build, whole, facts(glibc=31), tmp_path)


def test_the_compiler_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "sh")
    assert compiler_for(build, "aarch64") == "sh"
