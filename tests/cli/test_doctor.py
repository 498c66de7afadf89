"""``doctor`` foretells how a run would end: its exit status, its problems, its remedies."""

from __future__ import annotations

import datetime
import io
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from coordinator.brokers.broker_files import write_broker_folder
from coordinator.brokers.opening import BrokerProcess
from coordinator.cli.doctor_model import model_report
from coordinator.cli.doctor_table import print_report
from coordinator.cli.identity_findings import identity_findings
from coordinator.cli.masking_findings import masking_findings
from coordinator.cli.model_arguments import ModelArguments
from coordinator.identity.authority import Authority
from coordinator.identity.certificates import certificate_pem, root_certificate
from coordinator.run_file.loading import load_config
from edge.contracts.errors import DeviceRefused
from edge.identity.device_identity import make_request
from edge.runtimes import KNOWN
from tests.cli.conftest import OWN, Command
from tests.federation.small_run import config_text

ROOT = Path(__file__).parents[2]


def findings(line: dict[str, Any], state: str) -> dict[str, str]:
    """Name -> detail of the findings in ``state``."""
    return {f["name"]: f["detail"] for f in line["findings"] if f["state"] == state}


@pytest.mark.broker
def test_doctor_finds_nothing_wrong_with_the_demo(command: Command) -> None:
    outcome = command("doctor", ROOT / "examples" / "digits.toml", "--json")
    assert outcome.status == 0, outcome.err
    good = findings(outcome.line, "ok")
    assert outcome.line["failed"] == []
    assert good["data"] == "1198 examples, 599 held out"
    assert good["method"].startswith("full, rank 1/5")
    assert good["broker"] == "amqtt lets us in"
    assert {"python", "torch", "onnxruntime"} <= good.keys()
    assert all(not f["fix"] for f in outcome.line["findings"] if f["state"] == "ok")


def test_doctor_shows_every_mistake_of_a_run_file_and_exits_2(command: Command, tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text(config_text().replace("rounds = 3", "rounds = 0").replace('"mlp"', '"mlpp"'))
    outcome = command("doctor", config, "--json")
    assert outcome.status == 2
    assert outcome.line["failed"] == [str(config)] * 2
    assert "$.federation.rounds: 0 is outside" in outcome.error["message"]
    assert "$.model.build: 'mlpp' is not known" in outcome.error["message"]


def test_doctor_tells_what_of_an_identity_runs_out(tmp_path: Path) -> None:
    identity = tmp_path / "identity"
    config = tmp_path / "run.toml"
    config.write_text(config_text(broker=f'url = "mosquitto"\nidentity = "{identity}"', local=0))
    loaded = load_config(config)
    (missing,) = identity_findings(loaded)
    assert (missing.state, missing.exit_code) == ("fail", 2)
    then = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=25)
    Authority.create(identity, days=40, now=lambda: then).close()
    near = identity_findings(loaded)
    assert [(found.state, found.detail.partition(" ends ")[0]) for found in near] == [
        ("warn", "the revocation list"),
        ("warn", "the root"),
    ]
    assert "apportion ca crl" in near[0].fix
    Authority(identity, now=lambda: then).write_crl(days=100)
    (identity / "ca.pem").write_bytes(_ended(identity))
    assert [(found.state, found.exit_code) for found in identity_findings(loaded)] == [("fail", 2)]


def test_doctor_looks_at_the_list_that_the_broker_goes_by(tmp_path: Path) -> None:
    identity, folder = tmp_path / "identity", tmp_path / "broker"
    now = datetime.datetime.now(datetime.UTC)
    with Authority.create(identity) as authority:
        authority.issue_server(["broker.local"])
    write_broker_folder(identity, folder)
    broker = f'url = "mqtts://broker.local"\nidentity = "{identity}"\nfolder = "{folder}"'
    page = 'web = "https://broker.local:8443"\nweb-socket = "wss://broker.local:8084"'
    (tmp_path / "run.toml").write_text(config_text(broker=f"{broker}\n{page}", local=0))
    loaded = load_config(tmp_path / "run.toml")
    assert [(found.name, found.state) for found in identity_findings(loaded)] == [
        ("certificates", "ok"),
        ("broker's revocation list", "ok"),
    ]
    for age, state, code in ((25, "warn", 1), (31, "fail", 3)):
        earlier = now - datetime.timedelta(days=age)
        with Authority.create(tmp_path / f"identity-{age}", now=lambda then=earlier: then) as other:
            (folder / "crl.pem").write_bytes(other.folder.crl.read_bytes())
        found = identity_findings(loaded)[-1]
        assert (found.name, found.state, found.exit_code) == ("broker's revocation list", state, code)
        assert found.fix == f"apportion ca crl --broker-folder {folder} --dir {identity}"


def test_doctor_says_who_can_take_part_in_masked_sums_and_what_a_cohort_stands(tmp_path: Path) -> None:
    identity = tmp_path / "identity"
    masked = "[privacy]\nsecure-aggregation = true\n"

    def findings(broker: str, local: int = 0) -> list[tuple[str, str]]:
        text = config_text(rounds=1, size=10, min_reports=3, local=local, broker=broker).replace(
            'name = "fedhm"', 'name = "fedavg"'
        )
        text = text.replace("levels = [4]", "").replace("frobenius-lambda = 0.0001", "")
        (tmp_path / "run.toml").write_text(f"{text}\n{masked}")
        return [(found.state, found.detail) for found in masking_findings(load_config(tmp_path / "run.toml"))]

    stands, who = findings('url = "embedded"')
    assert stands == (
        "ok",
        "of 10 devices 6 may collude: 7 take masks off, a sum is of 8 at least and has 2 honest updates or more",
    )
    assert who[0] == "warn"
    assert "sign nothing" in who[1]
    with Authority.create(identity) as authority:
        for name in ("pi-1", "pi-2"):
            authority.sign_device(make_request(tmp_path / name, name).request.read_bytes(), name)
        authority.revoke("pi-2")
    broker = f'url = "mosquitto"\nidentity = "{identity}"'
    told = "with a certificate that stands or started here, 8 needed; other devices are not selected"
    assert findings(broker)[1] == ("warn", f"1 {told}")
    assert findings(broker, local=7)[1] == ("ok", f"8 {told}")


def _ended(identity: Path) -> bytes:
    """A root of the identity's key that ran out yesterday."""
    key = serialization.load_pem_private_key((identity / "ca.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    then = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=25)
    return certificate_pem(root_certificate(key, "Apportion root", then, datetime.timedelta(days=24)))


@pytest.mark.broker
def test_doctor_data_that_is_not_there_is_exit_1(command: Command, tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    data = f'source = "mnist-writers"\npath = "{tmp_path}"'
    config.write_text(config_text().replace('source = "digits"', data))
    outcome = command("doctor", config, "--json")
    assert outcome.status == 1
    assert outcome.line["failed"] == ["data"]
    assert "mnist.npz: no such file" in outcome.error["message"]


@pytest.mark.slow
@pytest.mark.broker
def test_doctor_wrong_password_is_exit_3(
    amqtt_broker: BrokerProcess, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = amqtt_broker.address
    config = tmp_path / "run.toml"
    broker = f'url = "{address.url}"\nuser = "{address.user}"\npassword-env = "APPORTION_DOCTORS_PASSWORD"'
    config.write_text(config_text(broker=broker, local=0))
    monkeypatch.setenv("APPORTION_DOCTORS_PASSWORD", "wrong")
    outcome = command("doctor", config, "--json")
    assert outcome.status == 3
    assert f"refused user '{address.user}'" in outcome.error["message"]
    monkeypatch.setenv("APPORTION_DOCTORS_PASSWORD", address.password)
    outcome = command("doctor", config, "--json")
    assert outcome.status == 0, outcome.err
    assert findings(outcome.line, "ok")["broker"] == f"{address.url} lets us in"


@pytest.mark.slow
def test_doctor_shows_layers_against_runtimes(command: Command) -> None:
    outcome = command("doctor", "tests.cli.own_models:small", *OWN[:4], "--json")
    assert outcome.status == 0, outcome.err
    line = outcome.line
    assert line["schema"] == "apportion.doctor/1"
    assert line["ok"]
    assert "onnxruntime" in line["trained_by"]
    assert set(line["runtimes"]) == set(KNOWN)
    assert line["runtimes"]["onnxruntime"] == {"trains": True, "layers_trained": 3, "missing": ""}
    first = line["rows"][0]
    assert (first["layers"], first["type"], first["input"], first["output"]) == (["0"], "Linear", ["Nx8"], ["Nx6"])
    assert first["parameters"] == 8 * 6 + 6
    assert first["runtimes"]["onnxruntime"] == {"state": "trains", "passes": [], "reason": "", "instead": ""}


@pytest.mark.slow
def test_doctor_names_the_layer_that_no_runtime_trains(command: Command) -> None:
    outcome = command("doctor", "tests.cli.own_models:with_sorting", *OWN[:4])
    assert outcome.status == 1
    assert "layer 1 (Sorted): " in " ".join(outcome.out.split())
    assert "use amax or a softmax" in " ".join(outcome.out.split())
    assert "onnxruntime            trains 2 of 3 layers" in outcome.out
    assert outcome.out.splitlines()[-2].startswith("FAIL  tests.cli.own_models:with_sorting: no runtime trains it: ")


@pytest.mark.slow
def test_doctor_says_that_dropout_trains(command: Command) -> None:
    outcome = command("doctor", "tests.cli.own_models:with_dropout", *OWN[:4], "--json")
    assert outcome.status == 0, outcome.err
    assert outcome.line["rows"][1]["type"] == "Dropout"
    assert outcome.line["rows"][1]["runtimes"]["onnxruntime"]["state"] == "trains"


@pytest.mark.slow
def test_doctor_says_that_as_json_too(command: Command) -> None:
    outcome = command("doctor", "tests.cli.own_models:with_sorting", *OWN[:4], "--json")
    assert outcome.status == 1
    assert outcome.line["trained_by"] == []
    assert outcome.line["rows"][1]["runtimes"]["onnxruntime"]["state"] == "refused"
    assert "layer 1 (Sorted)" in outcome.error["message"]


@pytest.mark.slow
def test_doctor_looks_at_the_cut_that_a_device_would_get(command: Command) -> None:
    outcome = command("doctor", "tests.cli.own_models:wide", *OWN[:4], "--cut", "fedhm:4", "--json")
    assert outcome.status == 0, outcome.err
    kinds = {name: (row["type"], row["parameters"]) for row in outcome.line["rows"] for name in row["layers"]}
    assert kinds["2"] == ("FactorizedLinear", 2 * 64 * 16 + 64)


def test_doctor_of_a_model_that_does_not_run_is_exit_2(command: Command) -> None:
    outcome = command("doctor", "tests.cli.own_models:WrongWidth", *OWN[:4], "--json")
    assert outcome.status == 2
    assert "layer 'head' (Linear): the module's forward fails" in outcome.error["message"]


def test_doctor_runtime_that_cannot_be_asked_is_named(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable(*_: object) -> None:
        raise DeviceRefused("no kernels here")

    monkeypatch.setattr("export.formats.executorch_program.format.ExecutorchProgram.survey", unavailable)
    outcome = command("doctor", "tests.cli.own_models:small", *OWN[:4])
    assert outcome.status == 0
    assert "executorch             cannot be asked here: no kernels here" in outcome.out


@pytest.mark.slow
@pytest.mark.parametrize("width", [80, 120])
def test_doctor_table_fits(width: int) -> None:
    report = model_report(ModelArguments("lstm", (), 0, 32))
    page = io.StringIO()
    print_report(report, page, width=width)
    lines = page.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    for text in ("NextCharacter", "Embedding", "202,752", "Nx80x128", "rewritten", "trains the whole model"):
        assert text in page.getvalue()


def test_doctor_fix_with_nothing_missing_installs_nothing(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: started.append(args))
    outcome = command("doctor", "--fix", "--json")
    assert outcome.status == 0
    assert started == []
