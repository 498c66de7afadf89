"""``apportion device`` where devices are heard over a real broker: claimed by link, probed, silent, interrupted."""

from __future__ import annotations

import asyncio
import io
import json
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.brokers.mosquitto import find_mosquitto
from coordinator.brokers.opening import BrokerProcess
from coordinator.cli.device_adding import Adding, Outcome
from coordinator.cli.device_progress import Progress
from coordinator.cli.device_requests import Requests
from coordinator.fleet.book import FleetBook
from coordinator.fleet.greeting import Greeter
from coordinator.identity.authority import Authority
from edge.__main__ import main
from edge.contracts import topics
from edge.contracts.envelope import seal
from edge.contracts.errors import DeadlineExpired
from edge.contracts.messages import Hello
from edge.transport.base import Event, Received
from edge.transport.broker_address import parse_broker
from edge.transport.mqtt import MqttTransport
from profiles.device import DeviceProfile
from tests.cli.conftest import Command
from tests.coordinator.fleet.local_host import LocalHost

pytestmark = [
    pytest.mark.broker,
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed here"),
]


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FleetBook]:
    """The book of a fleet whose broker runs."""
    monkeypatch.chdir(tmp_path)
    with Authority.create(tmp_path / "identity") as authority:
        authority.issue_coordinator("digits")
    with BrokerProcess("mosquitto", tmp_path / "broker", identity=tmp_path / "identity") as broker:
        book = FleetBook(tmp_path / "fleet")
        book.settle(federation="digits", broker=broker.address.url, identity=str(tmp_path / "identity"))
        yield book


class Device:
    """Says hello when it is called, with files that ``apportion enrol`` wrote."""

    def __init__(self, device: str, files: Path, broker: str) -> None:
        self._device = device
        paths = {"ca": "ca.pem", "certificate": "device.pem", "key": "device.key"}
        self.transport = MqttTransport(
            parse_broker(broker, **{name: str(files / path) for name, path in paths.items()}),
            client_id=device,
            subscriptions=topics.device_filters("digits", device),
        )
        self.transport.start(self._take)

    def _take(self, event: Event) -> None:
        if isinstance(event, Received) and topics.kind_of(event.topic) == "hello":
            profile = DeviceProfile(device=self._device, board="Pixel 8", runtimes={"onnxruntime": "1.31.1"})
            hello = Hello(
                device=self._device, agent_version="1", profile=profile, runtimes=profile.runtimes, num_examples=12
            )
            self.transport.publish(topics.up("digits", self._device, "hello"), seal("hello", hello))


class Scanned:
    """Waits for the link on a command's stderr, enrols with it, and comes to the broker, as a phone would."""

    def __init__(self, capsys: pytest.CaptureFixture[str], folder: Path, broker: str) -> None:
        self._capsys, self._folder, self._broker = capsys, folder, broker
        self.devices: list[Device] = []
        self.shown = ""
        self.thread = threading.Thread(target=self._scan)

    def _scan(self) -> None:
        from edge.contracts.claims import ClaimLink
        from edge.identity.enrolment import enrol

        give_up_at = time.monotonic() + 20
        while time.monotonic() < give_up_at:
            self.shown += self._capsys.readouterr().err
            if found := re.search(r"https://localhost:\d+/join\S+", self.shown):
                enrolled = enrol(ClaimLink.from_text(found[0]), self._folder)
                self.devices.append(Device(enrolled.device, self._folder, self._broker))
                return
            time.sleep(0.05)


@pytest.mark.slow
def test_phone_scans_the_link_and_is_one_of_the_fleet(
    book: FleetBook, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    phone = Scanned(capsys, tmp_path / "phone", book.settings().broker)
    phone.thread.start()
    words = ["--qr", "--device", "phone-1", "--listen", "https://localhost:0", "--wait-s", "20", "--json"]
    status = main(["device", "add", *words])
    phone.thread.join()
    out = capsys.readouterr().out
    assert status == 0, out
    line = json.loads(out)
    assert (line["device"], line["claimed"], line["profile"]) == ("phone-1", True, "fleet/profiles/phone-1.json")
    entry = book.get("phone-1")
    assert (entry.way, entry.state, entry.seen_at > 0) == ("claim", "enrolled", True)
    # It cannot be reached, but it can be asked.
    assert main(["device", "probe", "phone-1", "--json"]) == 0
    probed = json.loads(capsys.readouterr().out)
    assert (probed["target"], probed["profile"]["board"]) == (None, "Pixel 8")
    book.change("phone-9", way="claim")
    assert main(["device", "ls", "--here"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines[1:]] == [["phone-1", "enrolled", "idle"], ["phone-9", "begun", "away"]]
    assert main(["device", "ls", "--here", "--json"]) == 0
    assert [row["now"] for row in json.loads(capsys.readouterr().out)["devices"]] == ["idle", None]
    phone.devices[0].transport.stop()
    assert main(["device", "probe", "phone-1", "--wait-s", "1", "--json"]) == 4
    assert "'phone-1' said no hello" in json.loads(capsys.readouterr().out)["error"]["message"]


@pytest.mark.slow
def test_link_that_nobody_uses_is_a_timeout(book: FleetBook, command: Command) -> None:
    words = ["--qr", "--device", "phone-2", "--listen", "https://localhost:0", "--expires", "1s", "--json"]
    outcome = command("device", "add", *words)
    assert (outcome.status, outcome.error["code"]) == (4, "deadline-expired")
    assert "nobody claimed 'phone-2' within 1s" in outcome.error["message"]


def test_silent_agent_is_told_with_the_end_of_its_log(book: FleetBook, tmp_path: Path) -> None:
    host = LocalHost(tmp_path / "home")
    folder = host.home / ".apportion/pi-1"
    folder.mkdir(parents=True)
    settings = book.settings()
    installation = Requests(data="~/images").installation("pi-1", settings, None)
    progress = Progress(stream=io.StringIO())
    with Greeter(settings.broker, Path(settings.identity), settings.federation) as greeter:
        adding = Adding(book, settings, Requests(), greeter, 0.3)
        (folder / "agent.log").write_text("")
        with pytest.raises(DeadlineExpired, match="its agent's log is empty"):
            asyncio.run(adding._hello(host, installation, progress))
        (folder / "agent.log").write_text("\n".join(f"line {number}" for number in range(50)))
        with pytest.raises(DeadlineExpired) as error:
            asyncio.run(adding._hello(host, installation, progress))
    assert "the last lines of its agent's log:\nline 38\n" in str(error.value)
    assert str(error.value).endswith("line 49")
    assert "apportion device logs pi-1" in error.value.hint


def test_progress_shows_a_step_when_it_has_ended_and_keeps_notes() -> None:
    stream = io.StringIO()
    progress = Progress("pi@host", width=8, stream=stream)
    progress("probe: what pi@host is")
    progress("  1 of 3: a wheel")  # for terminals only
    assert stream.getvalue() == ""
    progress.rename("pi-1")
    progress("the agent ends when you log out there")
    progress("start: the agent")
    progress.end()
    lines = stream.getvalue().splitlines()
    assert lines[0] == "pi-1      the agent ends when you log out there"
    assert [re.sub(r" +[\d.]+ s$", "", line) for line in lines[1:]] == [
        "pi-1      probe        what pi@host is",
        "pi-1      start        the agent",
    ]
    assert progress.notes == ["the agent ends when you log out there"]


def test_progress_on_a_terminal_shows_what_goes_on() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    progress = Progress(stream=stream)
    progress("wheels: 15 packages")
    progress("  2 of 15: numpy, 16.1 MB")
    assert stream.getvalue().endswith("\r\x1b[Kwheels       2 of 15: numpy, 16.1 MB ...")
    progress.end()
    assert re.search(r"\r\x1b\[Kwheels       15 packages +0\.0 s\n$", stream.getvalue())


def test_outcome_of_a_failure_has_what_is_known(book: FleetBook) -> None:
    outcome = Outcome(target="pi@host")
    outcome.error = DeadlineExpired("no hello", hint="look")
    told = outcome.as_dict()
    assert (told["ok"], told["device"], told["changed"], told["examples"]) == (False, None, [], None)
    assert told["error"] == {"code": "deadline-expired", "message": "no hello", "hint": "look"}
