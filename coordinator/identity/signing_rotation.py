"""The key that signs orders is changed: a new one beside the old, then without it, and devices follow by themselves.

Each step is a numbered statement, signed by a key that counts before and after it; all of them are kept and told to
every device at its hello. So whoever was away follows them one after the other, however many there were, as long as it
trusts the key that signed the first one it missed.
"""

from __future__ import annotations

from pathlib import Path

from coordinator.identity.folder import PRIVATE, PUBLIC, IdentityFolder, write_file
from coordinator.identity.signing import SigningKey, read_private, read_statements, write_statements
from edge.contracts.errors import IdentityRefused
from edge.contracts.identity import MAX_STATEMENTS, KeyStatement
from edge.contracts.signing import signers_text

NEXT = "apportion ca signing-key retire"


def introduce(root: Path) -> KeyStatement:
    """Make a new key that devices trust beside the old one, which goes on signing.

    Raises:
        IdentityRefused: one was introduced already, or nothing can be read there.
    """
    folder, current = IdentityFolder(root), SigningKey.load(root)
    statements = read_statements(folder)
    if folder.next_signing_key.exists() and len(statements[-1].keys if statements else ()) > 1:
        raise IdentityRefused(f"{root}: a new signing key waits already for the old one's end", hint=NEXT)
    if len(statements) + 2 > MAX_STATEMENTS:
        raise IdentityRefused(f"{root}: {len(statements)} changes of the signing key are the most that devices follow")
    new = SigningKey.generate()
    write_file(folder.next_signing_key, new.private_pem, PRIVATE)
    made = _stated(statements, (current.public_raw, new.public_raw), current)
    write_file(folder.signing_public, current.public_pem + new.public_pem, PUBLIC)
    write_statements(folder, [*statements, made])  # last: with it the rest is there
    return made


def retire(root: Path) -> KeyStatement:
    """Have the new key sign, and the old one count no more. An interrupted call is finished by the next one.

    Raises:
        IdentityRefused: none was introduced.
    """
    folder = IdentityFolder(root)
    statements = read_statements(folder)
    if not folder.next_signing_key.exists() or not statements:
        raise IdentityRefused(f"{root}: no new signing key was introduced", hint="apportion ca signing-key new")
    new = SigningKey(read_private(folder.next_signing_key))
    if statements[-1].keys != (new.public_raw,):
        statements = [*statements, _stated(statements, (new.public_raw,), new)]
        write_statements(folder, statements)
    write_file(folder.signing_key, new.private_pem, PRIVATE)
    write_file(folder.signing_public, new.public_pem, PUBLIC)
    folder.next_signing_key.unlink()
    return statements[-1]


def _stated(statements: list[KeyStatement], keys: tuple[bytes, ...], signer: SigningKey) -> KeyStatement:
    number = statements[-1].number + 1 if statements else 1
    return KeyStatement(number, keys, signer.sign(signers_text(number, keys)))
