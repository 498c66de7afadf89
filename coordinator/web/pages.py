"""The built page of the agent for browsers: the files of the build and nothing beside them.

Files are looked up in a list made at the start, never in the file system by what somebody asks for. What the build has
compressed is sent so to whoever takes it.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response

from edge.contracts.claims import JOIN_PATH
from edge.contracts.errors import ConfigError

ENCODINGS = {"br": ".br", "gzip": ".gz"}
"""Content codings in order of preference, and what the build adds to a file's name."""

MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".mjs": "text/javascript; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".wasm": "application/wasm",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}

_HASHED = re.compile(r"/assets/.+-[A-Za-z0-9_-]{8}\.[a-z0-9.]+")
IMMUTABLE = "public, max-age=31536000, immutable"


@dataclass(frozen=True)
class BuiltFile:
    """One file of the build.

    Attributes:
        encoded: content coding -> the same, compressed.
        etag: of its bytes.
    """

    path: Path
    media_type: str
    is_immutable: bool
    etag: str
    encoded: dict[str, Path] = field(default_factory=dict)


def built_folder() -> Path:
    """Folder of the built page: of the checkout, or of the installed package.

    Raises:
        ConfigError: the page has not been built.
    """
    folder = Path(str(resources.files("edge"))) / "web" / "dist"
    if not (folder / "index.html").is_file():
        raise ConfigError(
            [f"the page for phones is not built: {folder} has no index.html"],
            hint="in a checkout: make web (needs node 18 or later and npm); or install a wheel that was built after it",
        )
    return folder


class Pages:
    """Answers requests for the files of the build in ``folder``.

    Raises:
        ConfigError: ``folder`` holds no page.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = (folder or built_folder()).resolve()
        self._files = _files(self.folder)
        index = self._files.get("/index.html")
        if index is None:
            raise ConfigError([f"{self.folder} has no index.html"], hint="make web builds the page")
        self._files |= {"/": index, JOIN_PATH: index}

    def paths(self) -> list[str]:
        """Every path that is answered."""
        return sorted(self._files)

    async def answer(self, request: Request) -> Response:
        """The file at the request's path, or 404."""
        file = self._files.get(request.url.path)
        if file is None:
            return PlainTextResponse("not found\n", status_code=404, headers={"Cache-Control": "no-store"})
        coding, path = _chosen(file, request.headers.get("accept-encoding", ""))
        etag = f'"{file.etag}{f"-{coding}" if coding else ""}"'
        headers = {"Cache-Control": IMMUTABLE if file.is_immutable else "no-cache", "ETag": etag}
        if file.encoded:
            headers["Vary"] = "Accept-Encoding"
        asked = [word.strip().removeprefix("W/") for word in request.headers.get("if-none-match", "").split(",")]
        if etag in asked:
            return Response(status_code=304, headers=headers)
        if not path.is_file():
            text = "the page was built anew since this server started; start it again\n"
            return PlainTextResponse(text, status_code=404, headers={"Cache-Control": "no-store"})
        if coding:
            headers["Content-Encoding"] = coding
        return FileResponse(path, headers=headers, media_type=file.media_type)


def _chosen(file: BuiltFile, accepted: str) -> tuple[str, Path]:
    words = [word.strip().lower() for word in accepted.split(",")]
    accepts = {word.partition(";")[0].strip() for word in words if not re.search(r";\s*q=0(\.0*)?$", word)}
    for coding in ENCODINGS:
        if coding in accepts and coding in file.encoded:
            return coding, file.encoded[coding]
    return "", file.path


def _files(folder: Path) -> dict[str, BuiltFile]:
    found: dict[str, BuiltFile] = {}
    for path in sorted(folder.rglob("*")):
        # A link may lead out of the build; nothing in it is one.
        is_ours = path.is_file() and path.resolve() == path and path.suffix in MEDIA_TYPES
        if not is_ours or any(part.startswith(".") for part in path.relative_to(folder).parts):
            continue
        name = "/" + path.relative_to(folder).as_posix()
        encoded = {
            coding: beside
            for coding, suffix in ENCODINGS.items()
            if (beside := path.with_name(path.name + suffix)).is_file() and beside.resolve() == beside
        }
        etag = hashlib.sha256(path.read_bytes()).hexdigest()[:20]
        found[name] = BuiltFile(path, MEDIA_TYPES[path.suffix], bool(_HASHED.fullmatch(name)), etag, encoded)
    return found
