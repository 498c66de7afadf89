"""The key that signs orders is changed: devices that are there, and those that were away, follow; the old one ends."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from coordinator.identity import signing
from coordinator.identity.authority import Authority
from coordinator.identity.folder import IdentityFolder
from coordinator.identity.signing import SigningKey, introduce, retire
from edge.contracts.errors import ConfigError, IdentityRefused, SignatureRejected
from edge.contracts.identity import KeyStatement
from edge.contracts.signing import signers_text
from edge.identity.trust import Trust

MANIFEST = b"a manifest"


@pytest.fixture
def identity(tmp_path: Path) -> Path:
    Authority.create(tmp_path / "identity").close()
    return tmp_path / "identity"


def device(identity: Path, folder: Path, name: str = "device") -> Trust:
    """One that was given the identity's public keys as they are now."""
    given = folder / f"{name}.pub"
    given.write_bytes((identity / "signing.pub").read_bytes())
    trust = Trust.load(given)
    trust.keep_in(folder / f"{name}.learnt")
    return trust


def follows(trust: Trust, key: SigningKey) -> bool:
    try:
        trust.check_manifest(MANIFEST, key.manifest(MANIFEST))
    except SignatureRejected:
        return False
    return True


def test_both_keys_count_during_the_overlap_and_one_after_it(identity: Path, tmp_path: Path) -> None:
    trust, old = device(identity, tmp_path), SigningKey.load(identity)
    introduce(identity)
    overlap = SigningKey.load(identity)
    assert overlap.public_raw == old.public_raw
    assert trust.learn(overlap.statements)
    assert not trust.learn(overlap.statements)
    retire(identity)
    new = SigningKey.load(identity)
    assert new.public_raw != old.public_raw
    assert (follows(trust, old), follows(trust, new)) == (True, True)
    assert trust.learn(new.statements)
    assert (follows(trust, old), follows(trust, new)) == (False, True)


def test_device_that_was_away_for_three_changes_comes_back_by_itself(identity: Path, tmp_path: Path) -> None:
    trust, old = device(identity, tmp_path), SigningKey.load(identity)
    for _ in range(3):
        introduce(identity)
        retire(identity)
    new = SigningKey.load(identity)
    assert not follows(trust, new)
    assert trust.learn(new.statements)
    assert (follows(trust, old), follows(trust, new)) == (False, True)


def test_device_that_is_enrolled_later_follows_from_where_it_began(identity: Path, tmp_path: Path) -> None:
    introduce(identity)
    between = device(identity, tmp_path, "between")
    retire(identity)
    after = device(identity, tmp_path, "after")
    introduce(identity)
    retire(identity)
    new = SigningKey.load(identity)
    for trust in (between, after):
        assert trust.learn(new.statements)
        assert follows(trust, new)


def test_what_was_learnt_stays_over_a_restart_until_the_owner_gives_another_file(
    identity: Path, tmp_path: Path
) -> None:
    trust, old = device(identity, tmp_path), SigningKey.load(identity)
    introduce(identity)
    retire(identity)
    new = SigningKey.load(identity)
    trust.learn(new.statements)
    again = Trust.load(tmp_path / "device.pub")
    again.keep_in(tmp_path / "device.learnt")
    assert (follows(again, old), follows(again, new)) == (False, True)
    other = SigningKey.generate()
    (tmp_path / "device.pub").write_bytes(other.public_pem)
    anew = Trust.load(tmp_path / "device.pub")
    anew.keep_in(tmp_path / "device.learnt")
    assert (follows(anew, other), follows(anew, new)) == (True, False)


def statement(number: int, keys: tuple[bytes, ...], signer: SigningKey) -> KeyStatement:
    return KeyStatement(number, keys, signer.sign(signers_text(number, keys)))


def test_statement_that_no_lasting_key_has_signed_changes_nothing(identity: Path, tmp_path: Path) -> None:
    trust, ours, thief = device(identity, tmp_path), SigningKey.load(identity), SigningKey.generate()
    both = (ours.public_raw, thief.public_raw)
    forged = statement(1, both, thief)
    assert not trust.learn([forged])
    # A key cannot put itself out and another in: the other would have no word in it.
    assert not trust.learn([statement(1, (thief.public_raw,), ours)])
    good = statement(1, (ours.public_raw,), ours)
    assert not trust.learn([msgspec.structs.replace(good, number=2)])
    assert not trust.learn([msgspec.structs.replace(good, keys=both)])
    assert not trust.learn([statement(1, (), ours)])
    assert not trust.learn([statement(1, (ours.public_raw, b"short"), ours)])
    assert not follows(trust, thief)
    assert follows(trust, ours)


def test_retired_key_brings_nothing_back(identity: Path, tmp_path: Path) -> None:
    trust, old = device(identity, tmp_path), SigningKey.load(identity)
    introduce(identity)
    retire(identity)
    trust.learn(SigningKey.load(identity).statements)
    thief = SigningKey.generate()
    assert not trust.learn([statement(3, (old.public_raw, thief.public_raw), old)])
    assert not trust.learn(SigningKey.load(identity).statements[:1])  # the overlap, said again
    assert not follows(trust, old)


def test_steps_out_of_turn_are_refused(identity: Path) -> None:
    with pytest.raises(IdentityRefused, match="no new signing key was introduced"):
        retire(identity)
    introduce(identity)
    with pytest.raises(IdentityRefused, match="waits already") as error:
        introduce(identity)
    assert "retire" in error.value.hint
    retire(identity)
    assert sorted(path.name for path in identity.glob("sign*")) == ["signers.msgpack", "signing.key", "signing.pub"]


@pytest.mark.parametrize("point", ["signing_key", "signing_public"])
def test_interrupted_retirement_is_finished_by_the_next_call(
    identity: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:

    trust, stop_at = device(identity, tmp_path), getattr(IdentityFolder(identity), point)
    introduce(identity)
    write = signing.write_file

    def interrupted(path: Path, data: bytes, mode: int) -> None:
        if path == stop_at:
            raise OSError("no space")
        write(path, data, mode)

    with monkeypatch.context() as patch:
        patch.setattr(signing, "write_file", interrupted)
        with pytest.raises(OSError, match="no space"):
            retire(identity)
    if point == "signing_key":
        with pytest.raises(IdentityRefused, match="was retired and the change was interrupted"):
            SigningKey.load(identity)
    assert retire(identity).number == 2
    new = SigningKey.load(identity)
    assert trust.learn(new.statements)
    assert follows(trust, new)


def test_learnt_file_that_is_damaged_says_what_to_do(identity: Path, tmp_path: Path) -> None:
    (tmp_path / "device.learnt").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"device\.learnt cannot be read .* delete it"):
        device(identity, tmp_path)
