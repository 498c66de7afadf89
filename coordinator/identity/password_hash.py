"""Passwords as Mosquitto's password file holds them."""

from __future__ import annotations

import base64
import hashlib
import secrets


def mosquitto_password(user: str, password: str) -> bytes:
    """A line of a Mosquitto 2 password file: PBKDF2 with SHA-512, 101 iterations, as ``mosquitto_passwd`` writes it."""
    salt = secrets.token_bytes(12)
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, 101)
    return f"{user}:$7$101${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}\n".encode()
