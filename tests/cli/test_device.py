"""``apportion device`` without a machine to log in to: what is asked for, refused, kept and shown."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest

from coordinator.brokers.broker_files import local_device_files, write_broker_folder
from coordinator.fleet.book import FleetBook
from coordinator.identity.authority import Authority
from edge.__main__ import main
from profiles.device import CoreGroup, DeviceProfile
from tests.cli.conftest import Command

SETTINGS = ("--federation", "digits", "--broker", "mqtts://127.0.0.1:9", "--identity", "identity")
TARGET = ("device", "add", "pi@127.0.0.1:9", "--data", "~/images")


@pytest.fixture(scope="module")
def made_identity(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An identity to make copies of."""
    folder = tmp_path_factory.mktemp("made") / "identity"
    with Authority.create(folder) as authority:
        authority.issue_server(["localhost"])
        authority.issue_coordinator("digits")
    return folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made_identity: Path) -> Path:
    """The current folder, with an identity."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))  # neither the owner's keys nor their known hosts
    shutil.copytree(made_identity, tmp_path / "identity")
    return tmp_path


@pytest.fixture
def book(folder: Path) -> FleetBook:
    """Three devices in a book: one enrolled, one begun, one that came by itself and was revoked."""
    book = FleetBook(folder / "fleet")
    book.settle(federation="digits", broker="mqtts://127.0.0.1:9", identity=str(folder / "identity"))
    installed = {"data": "~/images", "folder": ".apportion/pi-07", "runtime": "onnxruntime", "budget_mb": 160.0}
    now = time.time()
    book.change("pi-07", way="ssh", target="pi@127.0.0.1", port=9, installation=installed, enrolled_at=now, seen_at=now)
    cores = (CoreGroup(name="Cortex-A72", count=4),)
    profile = DeviceProfile(
        device="pi-07", board="Raspberry Pi 4 Model B", ram_bytes=4 << 30, free_ram_bytes=1 << 30, cores=cores
    )
    book.keep_profile(profile, method="probe")
    book.change("pi-08", way="adb", target="R58M123", installation={**installed, "folder": ".apportion/pi-08"})
    book.change("tablet", way="claim", revoked_at=now, left="stop its agent there")
    return book


def test_first_device_needs_the_settings_and_all_that_are_missing_are_named(folder: Path, command: Command) -> None:
    outcome = command(*TARGET, "--json")
    assert (outcome.status, outcome.error["code"]) == (2, "bad-config")
    for flag in ("--federation", "--broker", "--identity"):
        assert f"{flag}: the fleet book does not have it yet" in outcome.error["message"]
    assert not (folder / "fleet").exists()


def test_settings_are_given_once(folder: Path, command: Command) -> None:
    assert command(*TARGET, *SETTINGS, "--no-wait", "--json").error["code"] == "host-unreachable"
    settings = FleetBook(folder / "fleet").settings()
    assert (settings.federation, settings.identity) == ("digits", str(folder / "identity"))
    assert command(*TARGET, "--no-wait", "--json").error["code"] == "host-unreachable"
    other = command(*TARGET, "--federation", "other", "--json")
    assert (other.status, "this book is of 'digits'" in other.error["message"]) == (2, True)
    assert FleetBook(folder / "fleet").settings() == settings


def test_settings_come_from_a_run_file(folder: Path, command: Command) -> None:
    text = (Path(__file__).parents[2] / "examples" / "digits.toml").read_text()
    (folder / "here.toml").write_text(text)
    local = command(*TARGET, "--config", "here.toml", "--json")
    assert (local.status, "devices cannot reach it" in local.error["message"]) == (2, True)
    broker = '\n[broker]\nurl = "mqtts://127.0.0.1:9"\nidentity = "identity"\n'
    (folder / "run.toml").write_text(text + broker)
    assert command(*TARGET, "--config", "run.toml", "--no-wait", "--json").error["code"] == "host-unreachable"
    settings = FleetBook(folder / "fleet").settings()
    assert (settings.broker, settings.identity) == ("mqtts://127.0.0.1:9", str(folder / "identity"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["add"], "one of user@host ..., --adb"),
        (["add", "pi@a", "--qr"], "one of user@host"),
        (["add", "--qr"], "--device: --qr needs exactly one"),
        (["add", "--print-script", "out", "--device", "a", "--device", "b"], "needs exactly one"),
        (["add", "pi@a", "pi@b", "--device", "one"], "1 ids for 2 targets"),
        (["add", "pi@a", "pi@a"], "given twice"),
        (["add", "pi@a", "pi@b", "--accept-host-key", "SHA256:x"], "is the key of one host"),
        (["add", "pi@a:99999"], "is not user@host"),
        (["add", "-oProxyCommand=true", "--data", "x"], "No such option"),
        (["add", "pi@a", "--train-between", "25:00-26:00"], "--train-between: '25:00-26:00' is no time of day"),
        (["add", "pi@a", "--broker", "mqtt://a"], "must be mqtts://"),
        (["add", "pi@a", "--identity", "nowhere"], "holds no identity"),
        (
            ["add", "--print-script", "out", "--device", "a", "--data", "d", "--machine", "armv6l"],
            "--machine: 'armv6l'",
        ),
        (["add", "--qr", "--device", "a", "--listen", "http://a"], "'http://a' is not https://host:port"),
        (["probe"], "a device of the book, user@host, or --adb is wanted"),
        (["upgrade"], "the ids of devices, or --all"),
        (["upgrade", "pi-07", "--all"], "the ids of devices, or --all"),
        (["upgrade", "tablet"], "was revoked; add it again"),
        (["logs", "tablet"], "was revoked"),
        (["logs", "nobody"], "it has: pi-07, pi-08, tablet"),
        (["revoke", "nobody"], "it has: pi-07, pi-08, tablet"),
    ],
)
def test_bad_arguments_are_exit_2_with_the_value(
    book: FleetBook, command: Command, arguments: list[str], words: str
) -> None:
    outcome = command("device", *arguments, "--json")
    assert outcome.status == 2
    assert words in outcome.error["message"]


@pytest.mark.slow
def test_broker_that_is_not_there_is_told_before_a_machine_is_touched(folder: Path, command: Command) -> None:
    outcome = command(*TARGET, *SETTINGS, "--json")
    assert (outcome.status, outcome.error["code"]) == (3, "broker-unreachable")
    assert "from this machine mqtts://127.0.0.1:9 cannot be reached" in outcome.error["message"]
    assert "--no-wait" in outcome.error["hint"]
    assert "connect" not in outcome.err.replace("cannot be reached", "").partition("error")[0]


def test_failure_of_one_of_several_is_told_for_each(folder: Path, command: Command) -> None:
    outcome = command("device", "add", "pi@127.0.0.1:9", "pi@127.0.0.1:10", *SETTINGS, "--no-wait", "--json")
    assert (outcome.status, outcome.line["ok"], outcome.line["changed"]) == (3, False, False)
    rows = outcome.line["devices"]
    assert [(row["target"], row["ok"], row["error"]["code"]) for row in rows] == [
        ("pi@127.0.0.1:9", False, "host-unreachable"),
        ("pi@127.0.0.1:10", False, "host-unreachable"),
    ]
    assert FleetBook(folder / "fleet").devices() == []


def test_list_shows_each_device_and_what_is_left_of_it(book: FleetBook, command: Command) -> None:
    shown = command("device", "ls").out
    lines = shown.splitlines()
    assert lines[0].split() == ["device", "state", "reached", "as", "runtime", "budget", "last", "hello", "profiled"]
    assert "enrolled  pi@127.0.0.1:9" in lines[1]
    assert "160 MB" in lines[1]
    assert lines[2].split()[:3] == ["pi-08", "begun", "adb:R58M123"]
    assert lines[3].split()[:5] == ["tablet", "revoked", "comes", "by", "itself"]
    assert lines[4] == "tablet: stop its agent there"
    line = command("device", "ls", "--json").line
    assert [(row["device"], row["state"], row["way"]) for row in line["devices"]] == [
        ("pi-07", "enrolled", "ssh"),
        ("pi-08", "begun", "adb"),
        ("tablet", "revoked", "claim"),
    ]
    assert (line["schema"], line["federation"]) == ("apportion.device/1", "digits")


def test_list_of_profiles_says_who_has_none(book: FleetBook, command: Command) -> None:
    lines = command("device", "ls", "--profiles").out.splitlines()
    assert "Raspberry Pi 4 Model B  4 x Cortex-A72  4096 MB  1024 MB" in lines[1]
    assert lines[2].split() == ["pi-08", "never"]
    row = command("device", "ls", "--profiles", "--json").line["devices"][0]
    assert row["stored_profile"]["profile"]["ram_bytes"] == 4 << 30


def test_empty_book_says_how_to_begin(folder: Path, command: Command) -> None:
    assert "apportion device add TARGET" in command("device", "ls").out
    assert command("device", "upgrade", "--all").status == 2


def test_revoked_device_that_cannot_be_reached_is_shut_out_and_the_rest_told(
    book: FleetBook, folder: Path, command: Command
) -> None:
    local_device_files(folder / "identity", "pi-07")
    write_broker_folder(folder / "identity", folder / "broker", at=Path("/etc/mosquitto/apportion"))
    outcome = command("device", "revoke", "pi-07", "--broker-folder", "broker", "--reason", "lost", "--json")
    line = outcome.line
    assert (outcome.status, line["ok"], len(line["revoked"]), line["removed"]) == (0, True, 1, [])
    assert line["broker"]["commands"][-1] == "sudo systemctl reload mosquitto"
    assert "sudo cp -rT" in outcome.err
    assert "its agent is still on pi@127.0.0.1:9, in ~/.apportion/pi-07" in line["left"]
    assert "user pi-07\ntopic deny #" in (folder / "broker" / "access").read_text()
    assert book.get("pi-07").state == "revoked"
    again = command("device", "revoke", "pi-07", "--json").line  # the broker's folder is known by now
    assert (again["revoked"], again["broker"]["folder"]) == ([], str(folder / "broker"))


def test_device_that_only_the_identity_knows_is_revoked_too(folder: Path, command: Command) -> None:
    local_device_files(folder / "identity", "by-hand")
    line = command("device", "revoke", "by-hand", "--identity", "identity", "--json").line
    assert len(line["revoked"]) == 1
    assert line["broker"]["commands"][0].startswith("apportion ca mosquitto --out DIR --dir ")
    assert "does not know it" in line["left"]


def test_claim_link_is_shown_with_its_code_and_kept_nowhere(book: FleetBook, folder: Path, command: Command) -> None:
    outcome = command(
        "device", "add", "--qr", "--device", "phone-1", "--listen", "https://localhost:0", "--no-wait",
        "--qr-file", "code.png", "--expires", "10m", "--json",
    )  # fmt: skip
    line = outcome.line
    assert (line["device"], line["claimed"], line["expires_s"]) == ("phone-1", False, 600)
    assert "/join#d=phone-1&t=" in line["link"]
    assert line["link"] in outcome.err
    assert "█" in outcome.err
    assert (folder / "code.png").read_bytes().startswith(b"\x89PNG")
    token = line["link"].partition("t=")[2].partition("&")[0]
    kept = [path for path in folder.rglob("*") if path.is_file() and token.encode() in path.read_bytes()]
    assert kept == []
    assert book.get("phone-1").state == "begun"


def test_print_script_writes_a_folder_for_a_board_that_is_not_here(
    book: FleetBook, folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    from coordinator.fleet.wheelhouse import Wheelhouse

    def wheelhouse(place: Path, facts: object, runtime: str) -> Wheelhouse:
        place.mkdir(parents=True)
        (place / "pip-1-py3-none-any.whl").write_bytes(b"pip")
        return Wheelhouse(place, {"pip-1-py3-none-any.whl": "0" * 64}, "e" * 64, 3, 3)

    monkeypatch.setattr("coordinator.cli.device_script.build_wheelhouse", wheelhouse)  # the index is another test's
    words = ["device", "add", "--print-script", "sd", "--device", "pi-09", "--data", "~/images", "--budget-mb", "160"]
    line = command(*words, "--only-charging", "--json").line
    assert line["files"] == ["ca.pem", "install.sh", "signing.pub", "wheels/pip-1-py3-none-any.whl"]
    text = Path(line["script"]).read_text()
    assert "--budget-mb 160" in text
    assert "--only-charging" in text
    entry = book.get("pi-09")
    assert (entry.way, entry.state, entry.facts["machine"]) == ("claim", "begun", "aarch64")
    assert entry.installation["extra_flags"] == ["--only-charging"]
    taken = command("device", "add", "--print-script", "sd", "--device", "pi-07", "--json")
    assert (taken.status, "is reached over ssh" in taken.error["message"]) == (2, True)


def test_password_comes_from_the_terminal_alone(
    book: FleetBook, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("getpass.getpass", lambda prompt: "")
    outcome = command("device", "logs", "pi-07", "--ask-password", "--json")
    assert (outcome.status, "no password was given" in outcome.error["message"]) == (2, True)


def test_broken_book_is_named(book: FleetBook, capsys: pytest.CaptureFixture[str]) -> None:
    (book.folder / "devices" / "pi-07.json").write_text("{")
    assert main(["device", "ls", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "fleet-book"
