"""Claim tokens: good once, for one device, for a time; what is stored does not help whoever reads it."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509

from coordinator.identity.authority import Authority
from coordinator.identity.claims import Claimed, create_token, exchange_token, parse_duration
from edge.contracts.errors import AccessDenied, IdentityRefused
from edge.identity.device_identity import make_request

START = datetime.datetime(2026, 11, 20, 12, 0, tzinfo=datetime.UTC)


class Clock:
    """A clock that stands still until it is moved."""

    now = START

    def __call__(self) -> datetime.datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def authority(tmp_path: Path, clock: Clock) -> Iterator[Authority]:
    with Authority.create(tmp_path / "identity", now=clock) as made:
        yield made


def request(folder: Path, device: str = "pi-07") -> bytes:
    return make_request(folder, device).request.read_bytes()


def test_token_gives_a_certificate_for_the_devices_key(authority: Authority, tmp_path: Path) -> None:
    pem = request(tmp_path)
    claimed = exchange_token(authority, create_token(authority, "pi-07", 3600), pem)
    certificate = x509.load_pem_x509_certificate(claimed.certificate)
    assert certificate.public_key() == x509.load_pem_x509_csr(pem).public_key()
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(claimed.ca))
    assert claimed.signing_public == authority.folder.signing_public.read_bytes()
    assert authority.folder.device("pi-07").read_bytes() == claimed.certificate


def test_used_token_is_refused_with_when_and_what_to_do(authority: Authority, tmp_path: Path) -> None:
    token = create_token(authority, "pi-07", 3600)
    exchange_token(authority, token, request(tmp_path))
    with pytest.raises(AccessDenied, match="for 'pi-07' was used 2026-11-20 12:00:00 UTC") as error:
        exchange_token(authority, token, request(tmp_path))
    assert "apportion ca revoke pi-07" in error.value.hint
    assert len(authority.records.certificates()) == 1


def test_expired_token_is_refused(authority: Authority, tmp_path: Path, clock: Clock) -> None:
    token = create_token(authority, "pi-07", 60)
    clock.now += datetime.timedelta(seconds=60)
    with pytest.raises(AccessDenied, match="expired 2026-11-20 12:01:00 UTC"):
        exchange_token(authority, token, request(tmp_path))
    clock.now -= datetime.timedelta(seconds=1)
    assert exchange_token(authority, token, request(tmp_path)).device == "pi-07"


def test_unknown_token_and_wrong_secret_give_the_same_answer(authority: Authority, tmp_path: Path) -> None:
    token = create_token(authority, "pi-07", 3600)
    wrong = token[:-1] + ("A" if token[-1] != "A" else "B")
    other = "0" * 16 + token[16:]
    answers = set()
    for tried in (wrong, other, "", "nonsense", token + "x", token.replace(".", "")):
        with pytest.raises(AccessDenied) as error:
            exchange_token(authority, tried, request(tmp_path))
        answers.add(str(error.value))
    assert answers == {"no such claim token"}
    assert exchange_token(authority, token, request(tmp_path)).device == "pi-07"


def test_unusable_request_leaves_the_token_good(authority: Authority, tmp_path: Path) -> None:
    token = create_token(authority, "pi-07", 3600)
    with pytest.raises(IdentityRefused, match=r"is for \['pi-08'\], not for device 'pi-07'"):
        exchange_token(authority, token, request(tmp_path / "other", "pi-08"))
    assert exchange_token(authority, token, request(tmp_path)).device == "pi-07"


def test_secret_is_nowhere_in_the_folder(authority: Authority) -> None:
    token_id, secret = create_token(authority, "pi-07", 3600).split(".")
    files = b"".join(path.read_bytes() for path in authority.folder.root.rglob("*") if path.is_file())
    assert token_id.encode() in files
    assert secret.encode() not in files


def test_new_token_and_revocation_end_an_older_token(authority: Authority, tmp_path: Path) -> None:
    first = create_token(authority, "pi-07", 3600)
    second = create_token(authority, "pi-07", 3600)
    with pytest.raises(AccessDenied):
        exchange_token(authority, first, request(tmp_path))
    authority.revoke("pi-07")
    with pytest.raises(AccessDenied, match="no such claim token"):
        exchange_token(authority, second, request(tmp_path))


def test_device_with_a_certificate_gets_no_token(authority: Authority, tmp_path: Path) -> None:
    authority.sign_device(request(tmp_path), "pi-07")
    with pytest.raises(IdentityRefused, match="'pi-07' has a certificate") as error:
        create_token(authority, "pi-07", 3600)
    assert "apportion ca revoke pi-07" in error.value.hint
    authority.revoke("pi-07")
    token = create_token(authority, "pi-07", 3600)
    with pytest.raises(IdentityRefused, match="the key of this request was revoked"):
        exchange_token(authority, token, request(tmp_path))
    assert exchange_token(authority, token, request(tmp_path / "new")).device == "pi-07"


def test_two_at_once_with_one_token_get_one_certificate(tmp_path: Path) -> None:
    folder = tmp_path / "identity"
    with Authority.create(folder) as authority:
        token = create_token(authority, "pi-07", 3600)
    requests = [request(tmp_path / str(index)) for index in range(4)]
    outcomes: list[Claimed | Exception] = []
    start = threading.Barrier(len(requests))

    def claim(pem: bytes) -> None:
        with Authority(folder) as own:
            start.wait(10)
            try:
                outcomes.append(exchange_token(own, token, pem))
            except AccessDenied as error:
                outcomes.append(error)

    threads = [threading.Thread(target=claim, args=(pem,)) for pem in requests]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Claimed"] + ["TokenRefused"] * 3


def test_token_for_an_unusable_id_is_refused(authority: Authority) -> None:
    with pytest.raises(IdentityRefused, match="device id '@digits' is not usable"):
        create_token(authority, "@digits", 60)


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("30m", 1800), ("1h", 3600), ("30d", 2_592_000)])
def test_duration_is_read(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "1", "h", "0s", "-1h", "1.5h", "31d", "1w", "1h ", "9999999999s"])
def test_duration_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(IdentityRefused, match="is not a time between 1 second and 30 days"):
        parse_duration(text)
