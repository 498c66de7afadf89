"""Blobs at an address that fsspec knows (S3, Google Cloud, a mounted folder): whole objects by digest, and no more.

Credentials and endpoints are read from the environment by the store's own library, never from here. Failures of every
such library are translated: what does not pass by itself within a few tries is StoreUnreachable.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from coordinator.blobs.blob_store import Stored, missing_blob
from coordinator.config.store import OBJECT_STORES, url_problem
from edge.contracts.errors import ApportionError, ArtifactCorrupt, ConfigError, StoreFull, StoreUnreachable
from edge.contracts.manifest import check_digest
from edge.system.atomic_files import FULL, write_whole

Value = TypeVar("Value")

RETRY_WAITS_S = (0.2, 1.0)
"""Between tries of one call, beside those that the store's own library makes."""

_CHUNK = 1 << 20
_SECRETS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_OPTIONS: dict[str, dict[str, Any]] = {
    scheme: {"config_kwargs": {"connect_timeout": 10, "read_timeout": 60, "retries": {"max_attempts": 3}}}
    for scheme in ("s3", "s3a")
}


class RemoteFolder:
    """Objects under ``url``: ``<first two digits>/<digest>``, ``damaged/<digest>`` and ``owner``.

    Raises:
        ConfigError: no usable address, or its library is not installed.
    """

    def __init__(self, url: str) -> None:
        from fsspec.core import url_to_fs

        if problem := url_problem(url):
            raise ConfigError([f"$.store.blobs: {problem}"])
        self.url = url.rstrip("/")
        scheme = url.partition("://")[0]
        try:
            # What is listed is acted on: nothing of it may come from a cache.
            # An instance of its own reads the environment as it is now.
            self._fs, root = url_to_fs(
                url, use_listings_cache=False, skip_instance_cache=True, **_OPTIONS.get(scheme, {})
            )
        except ImportError as error:
            extra = (
                "pip install 'apportion[s3]'" if scheme in ("s3", "s3a") else f"install fsspec's package for {scheme}"
            )
            raise ConfigError([f"$.store.blobs: {scheme}:// needs a package that is not here; {extra}"]) from error
        except ValueError as error:
            raise ConfigError([f"$.store.blobs: fsspec knows no {scheme}://; use s3, gs, abfs or file"]) from error
        self._root = root.rstrip("/")
        self._is_atomic = scheme in OBJECT_STORES
        self._is_local = scheme in ("file", "local")

    def claim(self, owner: str) -> None:
        """Marks the address as the one of the run ``owner``, on the condition that it is nobody's: of two, one has it.

        Raises:
            ConfigError: it is another run's. Two would delete each other's blobs.
        """
        if not self.owners():
            self._call("written to", lambda: self._create(f"{self._root}/owner", owner.encode()))
        # Read again, whatever was answered: a repeated request meets its own mark, and a store may know no conditions.
        found = self.owners()
        if found != [owner]:
            whose = found[0][:80] if found else "nobody, though it was marked"
            raise ConfigError(
                [f"$.store.blobs: {self.url} belongs to run '{whose}'; give every run a prefix of its own"]
            )

    def _create(self, path: str, data: bytes) -> None:
        """Write an object unless it is there."""
        if self._is_local:
            temporary = f"{self._root}/incoming/{uuid.uuid4().hex}"
            self._fs.makedirs(temporary.rpartition("/")[0], exist_ok=True)
            write_whole(Path(temporary), data)
            with contextlib.suppress(FileExistsError):
                os.link(temporary, path)
            os.unlink(temporary)
            return
        try:
            self._fs.pipe_file(path, data, mode="create")
        except FileExistsError:
            return
        except Exception as error:
            if "PreconditionFailed" not in str(error) and "ConditionalRequestConflict" not in str(error):
                raise

    def owners(self) -> list[str]:
        """The run that claimed the address, if one has."""
        try:
            return [self._call("read", lambda: self._fs.cat_file(f"{self._root}/owner")).decode("utf-8", "replace")]
        except FileNotFoundError:
            return []

    def entries(self) -> Iterator[Stored]:
        """Every blob there, in no order."""
        for path, info in self._listed("").items():
            digest = path.rpartition("/")[2]
            if len(digest) == 64 and f"/{digest[:2]}/{digest}" in f"/{path}" and "/damaged/" not in path:
                yield Stored(digest, int(info.get("size") or 0), _modified(info))

    def size(self, digest: str) -> int:
        """Bytes of a blob.

        Raises:
            ArtifactCorrupt: not there.
        """
        return int(self._info(digest).get("size") or 0)

    def modified(self, digest: str) -> float:
        """When a blob was put there, in seconds since 1970; raises as :meth:`size`."""
        return _modified(self._info(digest))

    def upload(self, source: Path, digest: str) -> None:
        """Puts a file's bytes there; they are durable when this returns.

        Raises:
            StoreFull: it takes no more; StoreUnreachable.
        """
        size = source.stat().st_size

        def put() -> None:
            self._write(self._path(digest), lambda at: self._fs.put_file(str(source), at))
            stored = self._fs.info(self._path(digest))["size"]
            if stored != size:
                raise OSError(f"{stored} bytes are there after {size} were sent")

        try:
            self._call("written to", put)
        except FileNotFoundError as error:
            raise StoreUnreachable(
                f"{self.url}: there is no such bucket or folder; make it, or mend store.blobs"
            ) from error

    def read_into(self, digest: str, file: BinaryIO | None) -> str:
        """SHA-256 of a blob's bytes, which are written to ``file`` as they come.

        Raises:
            ArtifactCorrupt: not there. StoreUnreachable; OSError where ``file`` fails.
        """
        found = hashlib.sha256()
        try:
            with self._call("read", lambda: self._fs.open(self._path(digest), "rb", block_size=8 * _CHUNK)) as source:
                while chunk := self._call("read", lambda: source.read(_CHUNK), again=False):
                    found.update(chunk)
                    if file is not None:
                        file.write(chunk)
        except FileNotFoundError as error:
            raise missing_blob(digest) from error
        return found.hexdigest()

    def delete(self, digest: str) -> None:
        """Removes a blob if it is there."""
        try:
            self._call("written to", lambda: self._fs.rm_file(self._path(digest)))
        except FileNotFoundError:
            return

    def set_aside(self, digest: str) -> None:
        """Moves a damaged blob to ``damaged/<digest>``."""
        there, aside = self._path(digest), f"{self._root}/damaged/{digest}"
        try:
            self._call("written to", lambda: self._write(aside, lambda at: self._fs.cp_file(there, at)))
        except FileNotFoundError:
            return
        self.delete(digest)

    def _path(self, digest: str) -> str:
        return f"{self._root}/{check_digest(digest, where='blob store')[:2]}/{digest}"

    def _info(self, digest: str) -> dict[str, Any]:
        try:
            return dict(self._call("read", lambda: self._fs.info(self._path(digest))))
        except FileNotFoundError as error:
            raise missing_blob(digest) from error

    def _listed(self, below: str) -> dict[str, dict[str, Any]]:
        try:
            return dict(self._call("listed", lambda: self._fs.find(f"{self._root}{below}", detail=True)))
        except FileNotFoundError as error:
            raise StoreUnreachable(
                f"{self.url}: there is no such bucket or folder; make it, or mend store.blobs"
            ) from error

    def _write(self, path: str, write: Callable[[str], object]) -> None:
        if self._is_atomic:
            write(path)
            return
        # Under a name of its own first: a half-written file must never be taken for a blob.
        temporary = f"{self._root}/incoming/{uuid.uuid4().hex}"
        self._fs.makedirs(temporary.rpartition("/")[0], exist_ok=True)
        self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        try:
            write(temporary)
            self._fs.mv(temporary, path)
        except BaseException:
            if self._fs.exists(temporary):
                self._fs.rm_file(temporary)
            raise

    def _call(self, done: str, call: Callable[[], Value], *, again: bool = True) -> Value:
        """What ``call`` returns; FileNotFoundError passes, other failures are tried again and then translated."""
        waits = RETRY_WAITS_S if again else ()
        for wait_s in (*waits, None):
            try:
                return call()
            except (FileNotFoundError, ApportionError):
                raise
            except Exception as error:  # botocore's, aiohttp's and fsspec's own have no other base
                if isinstance(error, OSError) and error.errno in FULL:
                    raise StoreFull(f"{self.url}: takes no more; make room there, then resume") from error
                if wait_s is None or isinstance(error, PermissionError):
                    raise StoreUnreachable(
                        f"{self.url} cannot be {done} ({type(error).__name__}: {_shown(error)})",
                        hint="see the credentials and the endpoint in the environment (AWS_PROFILE, AWS_ENDPOINT_URL) "
                        "and the bucket's rights; then resume",
                    ) from error
                time.sleep(wait_s)
        raise AssertionError("unreachable: the last try returns or raises")


def fetched(remote: RemoteFolder, digest: str, file: BinaryIO) -> None:
    """Fills an empty ``file`` with a blob, whose bytes are checked; a broken transfer is tried again from its start.

    Raises:
        ArtifactCorrupt: not there, or other bytes are. StoreUnreachable; OSError where ``file`` fails.
    """
    for wait_s in (*RETRY_WAITS_S, None):
        try:
            found = remote.read_into(digest, file)
            break
        except StoreUnreachable:
            if wait_s is None:
                raise
            time.sleep(wait_s)
            file.seek(0)
            file.truncate()
    if found != digest:
        raise ArtifactCorrupt(
            f"blob {digest[:12]} at {remote.url} holds bytes of digest {found[:12]}; run apportion fsck --repair"
        )


def _shown(error: Exception) -> str:
    text = str(error)[:300]
    for name in _SECRETS:
        if value := os.environ.get(name):
            text = text.replace(value, "***")
    return text


def _modified(info: dict[str, Any]) -> float:
    """When an object was written; now where its store does not say, so that it is not taken for old garbage."""
    for key in ("LastModified", "last_modified", "mtime", "updated", "created"):
        value = info.get(key)
        if isinstance(value, str):
            value = datetime.fromisoformat(value)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, int | float):
            return float(value)
    return time.time()
