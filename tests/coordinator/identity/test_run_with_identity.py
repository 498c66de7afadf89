"""A run whose broker lets in certificates only and whose devices follow signed orders only, from start to summary."""

from __future__ import annotations

import json
import shutil
import socket
import threading
import time
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from coordinator.brokers.mosquitto import find_mosquitto
from coordinator.fleet.claim_link import claim_link, root_fingerprint
from coordinator.identity.authority import Authority
from coordinator.identity.claims import create_token
from edge.__main__ import main
from edge.contracts.claims import ClaimLink
from edge.identity.claim_client import EnrolmentFailed
from edge.identity.enrolment import enrol
from tests.federation.small_run import config_text

pytestmark = [
    pytest.mark.broker,
    pytest.mark.runtime,
    pytest.mark.slow,
    pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed here"),
]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run(folder: Path, broker: str, **options: int) -> Path:
    """A run directory; the run succeeded."""
    folder.mkdir()
    (folder / "run.toml").write_text(config_text(broker=broker, rounds=1, **options))  # type: ignore[arg-type]
    assert main(["run", str(folder / "run.toml"), "--run-dir", str(folder / "run")]) == 0
    return folder / "run"


def claim_late(folder: Path, bulk: str) -> None:
    """A device with a claim link that comes while a run goes on, and before it is there to answer."""
    with Authority(folder / "identity") as authority:
        token = create_token(authority, "pi-late", 600)
    link = claim_link(bulk, token, root_fingerprint((folder / "identity" / "ca.pem").read_bytes()), "pi-late")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            enrolled = enrol(ClaimLink.from_text(link), folder / "late")
        except EnrolmentFailed:
            time.sleep(0.1)
        else:
            assert (enrolled.federation, enrolled.broker) == ("small", "")  # its broker is this machine's alone
            return


def test_run_by_certificate_gives_the_bits_of_a_run_by_password(tmp_path: Path) -> None:
    Authority.create(tmp_path / "identity").close()
    bulk = f"https://localhost:{free_port()}"
    newcomer = threading.Thread(target=claim_late, args=(tmp_path, bulk))
    newcomer.start()
    signed = run(tmp_path / "signed", f'url = "mosquitto"\nidentity = "{tmp_path}/identity"\nbulk = "{bulk}"')
    newcomer.join(30)
    assert (tmp_path / "late" / "device.pem").exists(), "a run answers claims where it serves blobs"
    plain = run(tmp_path / "plain", 'url = "mosquitto"')
    final = "checkpoints/final.safetensors"
    assert load_file(signed / final).keys() == load_file(plain / final).keys()
    assert (signed / final).read_bytes() == (plain / final).read_bytes()
    assert not (signed / "broker" / "passwords").exists()
    rules = (signed / "broker" / "access").read_text()
    assert "user @small" in rules
    with Authority(tmp_path / "identity") as authority:
        names = sorted(c.name for c in authority.records.certificates())
    assert names == ["@small", "device-00", "device-01", "device-02", "localhost", "pi-late"]
    for device in ("device-00", "device-01", "device-02"):
        log = (signed / "devices" / device / "agent.log").read_text()
        assert f"blobs come over {bulk}" in log
        assert f"the update goes over {bulk}" in log
        for words in ("bad-signature", "asking over MQTT", "/v1/"):
            assert words not in log


def test_devices_refuse_a_coordinator_with_another_signing_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    identity = tmp_path / "identity"
    Authority.create(identity).close()
    Authority.create(tmp_path / "other").close()
    shutil.copy(tmp_path / "other" / "signing.key", identity / "signing.key")
    text = config_text(broker=f'url = "mosquitto"\nidentity = "{identity}"', rounds=1, local=1, size=1, deadline_s=6.0)
    (tmp_path / "run.toml").write_text(text)
    status = main(["run", str(tmp_path / "run.toml"), "--run-dir", str(tmp_path / "run"), "--json"])
    captured = capsys.readouterr()
    assert status != 0
    assert json.loads(captured.out)["ok"] is False
    assert "bad-signature" in captured.err + (tmp_path / "run" / "devices" / "device-00" / "agent.log").read_text()
    assert "by none of the 1 trusted key" in (tmp_path / "run" / "devices" / "device-00" / "agent.log").read_text()


def test_device_that_is_revoked_while_a_run_goes_on_is_cut_off_and_the_run_ends_well(tmp_path: Path) -> None:
    identity, metrics = tmp_path / "identity", tmp_path / "run" / "metrics.jsonl"
    Authority.create(identity).close()

    def revoke_late() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not (metrics.exists() and "reports" in metrics.read_text()):
            time.sleep(0.02)
        with Authority(identity) as authority:
            authority.revoke("device-02")

    broker = f'url = "mosquitto"\nidentity = "{identity}"'
    text = config_text(broker=broker, rounds=4, min_reports=2, deadline_s=60.0, join_timeout_s=3.0)
    (tmp_path / "run.toml").write_text(text)
    thread = threading.Thread(target=revoke_late)
    thread.start()
    status = main(["run", str(tmp_path / "run.toml"), "--run-dir", str(tmp_path / "run")])
    thread.join(60)
    assert status == 0
    reports = [json.loads(line)["reports"] for line in metrics.read_text().splitlines() if '"reports"' in line]
    assert (len(reports), reports[0], reports[-1]) == (4, 3, 2)
    rules = (tmp_path / "run" / "broker" / "access").read_text()
    assert "user device-02\ntopic deny #\n" in rules
