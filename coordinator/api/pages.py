"""The browser's side of the coordinator: its pages and their static files. `app.py` includes `router`.

A page is a shell without data: what it shows comes from `/api/v1`, so that access is decided in one place
and a page may be cached, proxied by an agent and served under a path prefix alike. Static files live under
a folder named after a digest of all of them, `/static/<digest>/…`: a new release has new addresses (modules
import each other relatively), hence a browser keeps them for ever and never mixes two releases.
"""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fastapi import APIRouter, Request, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

WEB = Path(__file__).resolve().parent.parent / "web"

# Beside the policy that `edge.py` puts on every answer (nothing inline, nothing from elsewhere): a script of ours
# cannot have a string parsed as HTML, whatever it says.
PAGE_HEADERS = {
    "Content-Security-Policy": "require-trusted-types-for 'script'; trusted-types 'none'",
    "Cache-Control": "no-cache",
}

STATIC_HEADERS = {
    "Cache-Control": "public, max-age=31536000, immutable",
    "Vary": "Accept-Encoding",
}

# Types are said here, because a container's own table of them may be empty.
_TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
    "": "text/plain; charset=utf-8",
}
# Stands in the page for "nothing here" where the way up to the root goes: it is asked for at any depth.
_UP = "%UP%"
_COMPRESSED_ALREADY = frozenset({".woff2", ".png"})
# Below this a compressed answer saves no packet.
_WORTH_COMPRESSING_BYTES = 1024

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True)
class StaticFile:
    """One static file, read once; `compressed` is its gzip form where that is worth sending."""

    content: bytes
    compressed: bytes | None
    media_type: str


@dataclass(frozen=True, slots=True)
class Site:
    """All that is served here, in memory (under a megabyte). A path is looked up, never opened."""

    version: str
    files: Mapping[str, StaticFile]
    pages: Mapping[str, bytes]


def _static_files(folder: Path) -> Iterator[tuple[str, StaticFile]]:
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.name.startswith("."):
            continue
        content = path.read_bytes()
        small = path.suffix in _COMPRESSED_ALREADY or len(content) < _WORTH_COMPRESSING_BYTES
        yield (
            path.relative_to(folder).as_posix(),
            StaticFile(
                content=content,
                compressed=None if small else gzip.compress(content, mtime=0),
                media_type=_TYPES.get(path.suffix)
                or mimetypes.guess_type(path.name)[0]
                or "application/octet-stream",
            ),
        )


def load(web: Path = WEB) -> Site:
    """Read templates and static files of `web` and render the pages."""
    files = dict(_static_files(web / "static"))
    digest = hashlib.sha256()
    for name, file in files.items():
        digest.update(f"{name}\0{len(file.content)}\0".encode())
        digest.update(file.content)
    version = digest.hexdigest()[:12]
    templates = Environment(
        loader=FileSystemLoader(web / "templates"),
        autoescape=select_autoescape(default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages = {
        name: templates.get_template(f"{name}.html")
        .render(root=root, static=f"{root}static/{version}")
        .encode()
        for name, root in (("overview", "./"), ("job", "../"), ("sign-in", "./"), ("missing", _UP))
    }
    return Site(version=version, files=files, pages=pages)


@cache
def site() -> Site:
    """The one `Site` of this process."""
    return load()


def _page(name: str) -> Response:
    return Response(site().pages[name], media_type="text/html", headers=PAGE_HEADERS)


def missing(request: Request) -> Response | None:
    """The page that says that there is none, with a way back; None for what is not a browser asking for a page."""
    path = request.scope["path"]
    wants_page = "text/html" in request.headers.get("accept", "")
    if request.method != "GET" or not wants_page or path.startswith("/api/"):
        return None
    up = "../" * (path.count("/") - 1) or "./"
    page = site().pages["missing"].replace(_UP.encode(), up.encode())
    return Response(page, status_code=404, media_type="text/html", headers=PAGE_HEADERS)


@router.get("/")
async def overview() -> Response:
    """All replicas and jobs."""
    return _page("overview")


@router.get("/jobs/{job_id}")
async def job(job_id: str) -> Response:  # noqa: ARG001 - the page reads it from its own address
    """One job."""
    return _page("job")


@router.get("/sign-in")
async def sign_in() -> Response:
    """Where a token becomes a session."""
    return _page("sign-in")


@router.get("/favicon.ico")
async def favicon() -> Response:
    """For browsers that ask before they have read the page."""
    icon = site().files["icon.svg"]
    return Response(icon.content, media_type=icon.media_type, headers={"Cache-Control": "max-age=86400"})


@router.get("/static/{version}/{path:path}")
async def static(version: str, path: str, request: Request) -> Response:
    """A static file of this release; another release's address is gone rather than answered wrongly."""
    current = site()
    file = current.files.get(path)
    if file is None or version != current.version:
        return Response("no such file", status_code=404, media_type="text/plain")
    if file.compressed is not None and "gzip" in request.headers.get("accept-encoding", ""):
        headers = {**STATIC_HEADERS, "Content-Encoding": "gzip"}
        return Response(file.compressed, media_type=file.media_type, headers=headers)
    return Response(file.content, media_type=file.media_type, headers=STATIC_HEADERS)
