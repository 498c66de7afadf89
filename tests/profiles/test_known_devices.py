"""The catalog: every file is sound, every figure has a source, and a stand-in can be planned with."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiles.device import CoreGroup, DeviceProfile
from profiles.known_devices import FOLDER, known_device, known_names, recognise
from profiles.probe import probe
from profiles.stored_profile import ProfileUnusable
from tests.profiles.boards import PHONE, PI_3B_PLUS, PI_4, PI_5, PI_ZERO_2W, Files, write_tree

HEAD = 'schema = "apportion.known-device/1"\ntitle = "X"\n'
RAM = '[[figures]]\nkind = "datasheet"\nsource = "a page"\nvalues = { ram_bytes = 512 }\n'


def catalog(folder: Path, text: str) -> Path:
    (folder / "x.toml").write_text(text)
    return folder


def test_the_catalog_has_the_common_devices() -> None:
    boards = {"pi-zero-2w", "pi-3b-plus", "pi-4-2gb", "pi-4-4gb", "pi-4-8gb", "pi-5-4gb", "pi-5-8gb"}
    assert set(known_names()) == boards | {"pixel-6", "galaxy-a54", "fairphone-4"}
    assert {path.suffix for path in FOLDER.iterdir()} == {".toml"}


@pytest.mark.parametrize("name", known_names())
def test_every_figure_of_the_catalog_has_its_source(name: str) -> None:
    device = known_device(name)
    profile = device.profile()
    assert profile.device == device.name == name
    assert profile.machine == "aarch64"
    assert profile.ram_bytes % 2**29 == 0
    assert profile.cpu_count == sum(group.count for group in profile.cores) >= 4
    assert profile.cpu_max_mhz == max(group.max_mhz or 0.0 for group in profile.cores)
    empty = DeviceProfile(device=name)
    told = {field for field in profile.__struct_fields__ if getattr(profile, field) != getattr(empty, field)}
    assert told - {"sources"} == set(profile.sources)
    assert all(source.startswith(("datasheet: ", "measured: ")) for source in profile.sources.values())


def test_the_catalog_of_a_raspberry_pi_4() -> None:
    profile = known_device("pi-4-4gb").profile(
        "stand-in", budget_bytes=200, supervisor_idle_bytes=30, trainer_idle_bytes={"onnxruntime": 60}
    )
    assert (profile.device, profile.ram_bytes, profile.cpu_model) == ("stand-in", 4 * 2**30, "Cortex-A72")
    assert profile.cores == (CoreGroup(name="Cortex-A72", count=4, max_mhz=1500.0),)
    assert (profile.budget_bytes, profile.supervisor_idle_bytes) == (200, 30)
    assert profile.trainer_idle_bytes == {"onnxruntime": 60}
    assert profile.probed_at == 0.0


@pytest.mark.parametrize(
    ("files", "name"),
    [(PI_ZERO_2W, "pi-zero-2w"), (PI_3B_PLUS, "pi-3b-plus"), (PI_4, "pi-4-4gb"), (PI_5, "pi-5-8gb"), (PHONE, None)],
)
def test_a_probed_board_is_recognised(tmp_path: Path, files: Files, name: str | None) -> None:
    found = recognise(probe("d", root=write_tree(tmp_path, files)))
    assert (found and found.name) == name


def test_a_board_with_more_memory_than_the_catalogs_is_not_recognised() -> None:
    assert recognise(DeviceProfile(device="d", board="Raspberry Pi 5 Model B Rev 1.1", ram_bytes=16 * 2**30)) is None
    assert recognise(DeviceProfile(device="d", board="Raspberry Pi 5 Model Bee", ram_bytes=2**30)) is None


def test_a_measured_figure_takes_the_place_of_the_datasheets(tmp_path: Path) -> None:
    measured = '[[figures]]\nkind = "measured"\nsource = "MemTotal"\ndate = 2026-11-20\nvalues = { ram_bytes = 500 }\n'
    for text in (HEAD + RAM + measured, HEAD + measured + RAM):
        profile = known_device("x", catalog(tmp_path, text)).profile()
        assert (profile.ram_bytes, profile.sources["ram_bytes"]) == (500, "measured: MemTotal, 2026-11-20")


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ProfileUnusable, match=r"'pi-9' is not in the catalog; it has fairphone-4, .*pixel-6"):
        known_device("pi-9")
    with pytest.raises(ProfileUnusable, match="not in the catalog"):
        known_device("../stored_profile")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("schema = 3", "Expected `str`"),
        ("schema = [", r"x\.toml: "),
        (HEAD.replace("/1", "/2") + RAM, "schema 'apportion.known-device/2', this release reads"),
        (HEAD + RAM.replace("ram_bytes", "rams"), "'rams' is no figure of a device; there are battery_percent"),
        (HEAD + RAM.replace("ram_bytes", "budget_bytes"), "'budget_bytes' is no figure"),
        (HEAD + RAM + RAM, "'ram_bytes' has two datasheet figures"),
        (HEAD + RAM.replace("a page", " "), "ram_bytes: no source"),
        (HEAD + RAM.replace("datasheet", "measured"), "ram_bytes: measured, and without a date"),
        (HEAD + RAM.replace("datasheet", "rumour"), "Invalid enum value 'rumour'"),
        (HEAD + "colour = 1\n" + RAM, "unknown field `colour`"),
        (HEAD + 'name = "y"\n' + RAM, "leave 'name' out"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ProfileUnusable, match=message):
        known_device("x", catalog(tmp_path, text))


def test_a_figure_of_another_type_is_refused(tmp_path: Path) -> None:
    device = known_device("x", catalog(tmp_path, HEAD + RAM.replace("512", '"much"')))
    with pytest.raises(ProfileUnusable, match=r"catalog, x: Expected `int`, got `str` - at `\$.ram_bytes`"):
        device.profile()
