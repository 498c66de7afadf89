"""The fleet book: what is given once, one file per device, and two commands that write at once."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import msgspec
import pytest

from coordinator.fleet.book import BookUnusable, DeviceBusy, FleetBook
from edge.contracts.errors import ConfigError
from profiles.device import DeviceProfile


def test_settings_are_kept_and_only_what_is_given_changes(tmp_path: Path) -> None:
    book = FleetBook(tmp_path / "fleet")
    assert not (tmp_path / "fleet").exists()
    book.settle(federation="digits", broker="mqtts://coord.local:8883", identity="/srv/identity")
    after = FleetBook(tmp_path / "fleet").settle(broker="mqtts://10.0.0.2:8883", identity="")
    assert (after.federation, after.broker, after.identity) == ("digits", "mqtts://10.0.0.2:8883", "/srv/identity")
    assert FleetBook(tmp_path / "fleet").settings() == after


def test_device_is_read_again_as_it_was_written(tmp_path: Path) -> None:
    book = FleetBook(tmp_path)
    made = book.change("pi-07", way="ssh", target="pi@pi-07", port=2222, facts={"machine": "aarch64"}, steps=("facts",))
    assert FleetBook(tmp_path).get("pi-07") == made
    assert (made.state, book.change("pi-07", enrolled_at=5.0).state) == ("begun", "enrolled")
    assert book.change("pi-07", revoked_at=9.0).state == "revoked"
    assert [entry.device for entry in book.devices()] == ["pi-07"]
    assert sorted(p.name for p in (tmp_path / "devices").iterdir()) == ["pi-07.json"]


def test_target_finds_its_device_and_one_that_stands_before_a_revoked_one(tmp_path: Path) -> None:
    book = FleetBook(tmp_path)
    book.change("old", way="ssh", target="pi@host", revoked_at=1.0)
    found = book.of_target("ssh", "pi@host", 22)
    assert found is not None
    assert found.device == "old"
    book.change("pi", way="ssh", target="pi@host")
    found = book.of_target("ssh", "pi@host", 22)
    assert found is not None
    assert found.device == "pi"
    assert book.of_target("ssh", "pi@host", 2222) is None
    assert book.of_target("adb", "pi@host", 22) is None


def test_unknown_device_lists_the_known_and_an_unusable_id_is_refused(tmp_path: Path) -> None:
    book = FleetBook(tmp_path)
    book.change("pi-07", way="claim")
    with pytest.raises(ConfigError, match=r"'pi-70' is not in the fleet book .*; it has: pi-07"):
        book.get("pi-70")
    for name in ("../x", "a/b", ""):
        with pytest.raises(ConfigError, match="not usable"):
            book.change(name, way="claim")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"{", "cannot be read"),
        (b'{"schema": "apportion.fleet-device/9", "device": "pi", "way": "ssh"}', "this release reads"),
        (b'{"schema": "apportion.fleet-device/1", "device": "pi", "way": "carrier pigeon"}', "way"),
        (b" " * ((1 << 20) + 1), "over the limit"),
    ],
)
def test_broken_file_is_named_with_what_to_do(tmp_path: Path, data: bytes, words: str) -> None:
    (tmp_path / "devices").mkdir()
    (tmp_path / "devices" / "pi.json").write_bytes(data)
    with pytest.raises(BookUnusable, match=words) as error:
        FleetBook(tmp_path).devices()
    assert "pi.json" in str(error.value)
    assert "backup" in error.value.hint


def test_fields_of_a_later_release_are_ignored(tmp_path: Path) -> None:
    book = FleetBook(tmp_path)
    book.change("pi", way="ssh", target="pi@host")
    path = tmp_path / "devices" / "pi.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "colour": "green"}))
    assert book.get("pi").target == "pi@host"


def _write_many(folder: Path, field: str) -> None:
    book = FleetBook(folder)
    for number in range(1, 41):
        book.change("shared", **{field: float(number)})
        book.settle(**{"federation" if field == "seen_at" else "broker": f"{field}-{number}"})
        book.change(f"{field}-{number}".replace("_", "-"), way="ssh", target=field)


def test_two_writers_lose_nothing_of_each_other(tmp_path: Path) -> None:
    FleetBook(tmp_path).change("shared", way="ssh", target="pi@host")
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_many, args=(tmp_path, field)) for field in ("seen_at", "added_at")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    book = FleetBook(tmp_path)
    assert (book.get("shared").seen_at, book.get("shared").added_at) == (40.0, 40.0)
    assert (book.settings().federation, book.settings().broker) == ("seen_at-40", "added_at-40")
    assert len(book.devices()) == 81
    assert list(tmp_path.rglob("*.tmp")) == []


def test_device_that_is_worked_on_is_busy_until_that_ends(tmp_path: Path) -> None:
    one, other = FleetBook(tmp_path), FleetBook(tmp_path)
    with one.working_on("pi"), other.working_on("pi-2"):
        with pytest.raises(DeviceBusy, match="device 'pi': another command works on it now"):
            with other.working_on("pi"):
                pass
    with other.working_on("pi"):
        pass


def test_book_that_cannot_be_written_says_where(tmp_path: Path) -> None:
    (tmp_path / "fleet").write_text("a file")
    with pytest.raises(BookUnusable, match="fleet"):
        FleetBook(tmp_path / "fleet").change("pi", way="ssh")


def test_profile_of_a_probe_keeps_what_only_the_agent_knows(tmp_path: Path) -> None:
    book = FleetBook(tmp_path)
    entry = book.change("pi", way="ssh", target="pi@host")
    assert book.stored_profile(entry) is None
    said = DeviceProfile(device="pi", ram_bytes=5, budget_bytes=7, runtimes={"onnxruntime": "1"}, temperature_c=60.0)
    book.keep_profile(said, method="hello")
    path = book.keep_profile(DeviceProfile(device="pi", ram_bytes=6), method="probe")
    assert (path, book.get("pi").profile) == (str(tmp_path / "profiles/pi.json"), "profiles/pi.json")
    stored = book.stored_profile(book.get("pi"))
    assert stored is not None
    kept = stored.profile
    assert (stored.method, kept.ram_bytes, kept.budget_bytes, kept.runtimes) == ("probe", 6, 7, {"onnxruntime": "1"})
    assert kept.temperature_c is None  # yesterday's heat is nobody's
    (tmp_path / "profiles/pi.json").write_text("{")
    assert book.stored_profile(book.get("pi")) is None


def test_no_secret_is_in_a_file(tmp_path: Path) -> None:
    names = set(msgspec.structs.asdict(FleetBook(tmp_path).change("pi", way="ssh")))
    assert not {name for name in names if "password" in name or "token" in name}
