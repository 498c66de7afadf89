"""The hash of a certificate's subject under which OpenSSL and Erlang look for its issuer's revocation list."""

from __future__ import annotations

import hashlib

from cryptography import x509

_UTF8_STRING, _SEQUENCE, _SET = 0x0C, 0x30, 0x31


def name_hash(name: x509.Name) -> str:
    """Eight hex digits: the name of the list's file is ``<hash>.r0``.

    Values are compared in small letters and with single spaces, so that is how they are hashed.
    Source: OpenSSL's X509_NAME_hash, which Erlang's ``public_key:short_name_hash`` follows.
    """
    canonical = b""
    for part in name.rdns:
        attributes = b"".join(
            _tagged(_SEQUENCE, _identifier(attribute.oid) + _tagged(_UTF8_STRING, _folded(str(attribute.value))))
            for attribute in part
        )
        canonical += _tagged(_SET, attributes)
    digest = hashlib.sha1(canonical, usedforsecurity=False).digest()
    return f"{int.from_bytes(digest[:4], 'little'):08x}"


def _folded(value: str) -> bytes:
    # bytes.lower() makes ASCII alone small, as OpenSSL does.
    return b" ".join(word for word in value.encode().lower().split(b" ") if word)


def _identifier(oid: x509.ObjectIdentifier) -> bytes:
    first, second, *rest = (int(number) for number in oid.dotted_string.split("."))
    content = b""
    for number in (first * 40 + second, *rest):
        septets = [number & 0x7F]
        while number := number >> 7:
            septets.append(number & 0x7F | 0x80)
        content += bytes(reversed(septets))
    return _tagged(0x06, content)


def _tagged(tag: int, content: bytes) -> bytes:
    if len(content) < 128:
        return bytes((tag, len(content))) + content
    length = len(content).to_bytes((len(content).bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + content
