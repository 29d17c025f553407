"""How pages and their files are served: for ever under a versioned address, nothing else of the disk, nothing inline."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import httpx
import pytest
from serving import running

from coordinator.api.pages import WEB, load


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with running(tmp_path_factory.mktemp("static")) as coordinator, coordinator.client(None) as client:
        yield client


class Parts(HTMLParser):
    """Addresses a page names, and what a strict policy would refuse."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.inline: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.addresses += [str(given[name]) for name in ("src", "href") if given.get(name)]
        self.inline += [name for name in given if name == "style" or name.startswith("on")]
        if tag == "style" or (tag == "script" and "src" not in given):
            self.inline.append(tag)


@pytest.mark.parametrize("path", ["/", "/jobs/7f3a91c2", "/sign-in"])
def test_a_page_needs_no_session_and_holds_nothing_inline(client: httpx.Client, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "require-trusted-types-for 'script'" in policy
    assert "unsafe" not in policy
    assert Parts(answer.text).inline == []


@pytest.mark.parametrize("path", ["/", "/jobs/7f3a91c2", "/sign-in"])
def test_every_file_a_page_names_is_there_and_kept_for_ever(client: httpx.Client, path: str) -> None:
    page = client.get(path)
    named = [a for a in Parts(page.text).addresses if "/static/" in a]
    assert len(named) > 5
    for address in named:
        answer = client.get(httpx.URL(str(page.url)).join(address))
        assert answer.status_code == 200, address
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_every_module_that_is_imported_is_there() -> None:
    files = load().files
    scripts = {name for name in files if name.endswith(".js")}
    assert len(scripts) > 20
    for name in scripts:
        text = files[name].content.decode()
        for wanted in re.findall(r'^(?:import|export)[^"\n]*from "([^"]+)"', text, re.MULTILINE):
            path = (Path("/") / name).parent / wanted
            assert str(Path(*path.parts[1:])).replace("..", "") and wanted.startswith(".")
            resolved = (WEB / "static" / Path(name).parent / wanted).resolve()
            assert resolved.is_file(), f"{name} imports {wanted}"


def test_a_change_of_any_file_changes_every_address(tmp_path: Path) -> None:
    for kind in ("static", "templates"):
        for source in (WEB / kind).rglob("*"):
            target = tmp_path / kind / source.relative_to(WEB / kind)
            if source.is_dir():
                target.mkdir(parents=True, exist_ok=True)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(source.read_bytes())
    assert load(tmp_path).version == load().version
    (tmp_path / "static" / "icon.svg").write_text("<svg/>")
    assert load(tmp_path).version != load().version


def test_another_releases_files_and_other_paths_are_not_there(client: httpx.Client) -> None:
    version = load().version
    assert client.get(f"/static/{version}/js/boot.js").status_code == 200
    for path in (
        "/static/000000000000/js/boot.js",
        f"/static/{version}/",
        f"/static/{version}/js",
        f"/static/{version}/../templates/base.html",
        f"/static/{version}/%2e%2e/templates/base.html",
        f"/static/{version}/..%2f..%2fapp.py",
        f"/static/{version}//etc/passwd",
    ):
        assert client.get(path).status_code == 404, path


def test_text_is_compressed_for_who_takes_it(client: httpx.Client) -> None:
    address = f"/static/{load().version}/vendor/uplot/uPlot.esm.js"
    packed = client.get(address, headers={"Accept-Encoding": "gzip"})
    whole = client.get(address, headers={"Accept-Encoding": "identity"})
    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in whole.headers
    assert packed.content == whole.content
    assert int(packed.headers["content-length"]) < int(whole.headers["content-length"]) / 2


def test_everything_vendored_stands_beside_its_licence() -> None:
    vendor = WEB / "static" / "vendor"
    said = (vendor / "README.md").read_text()
    folders = [folder for folder in vendor.iterdir() if folder.is_dir()]
    assert len(folders) == 3
    for folder in folders:
        assert (folder / "LICENSE").stat().st_size > 500
        assert f"| {folder.name} |" in said
