"""What a user names is read as far as it may be, and never waited for."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from coordinator.checks import FolderFiles
from coordinator.cli.bundle import BundleLimits, collect, read_files
from coordinator.cli.exits import Exit, Stop
from coordinator.cli.submission import LIMIT_TEXT_BYTES, Asked, read, read_text
from coordinator.core.regular import NotRegular, read_regular, write_new


@pytest.fixture
def odd(tmp_path: Path) -> dict[str, Path]:
    """What is no regular file, by the word for it."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
    named = {"pipe": "fifo", "folder": "folder", "device": "link", "socket": "socket"}
    return {word: tmp_path / name for word, name in named.items()}


@pytest.mark.timeout(10)
@pytest.mark.parametrize("word", ["pipe", "folder", "device", "socket"])
def test_what_is_no_file_is_refused_in_words_and_not_waited_for(odd: dict[str, Path], word: str) -> None:
    with pytest.raises(NotRegular, match=word):
        read_regular(odd[word], 100)
    with pytest.raises(Stop, match=word) as caught:
        read_text(odd[word], "config")
    assert caught.value.code == Exit.USAGE
    assert FolderFiles(odd[word].parent).read(odd[word].name) is None


@pytest.mark.timeout(10)
def test_a_bundle_waits_for_no_pipe(odd: dict[str, Path]) -> None:
    for word in ("pipe", "socket"):
        with pytest.raises(Stop, match="neither a file nor a folder"):
            collect(odd[word].parent, {"datasets": [{"path": f"./{odd[word].name}"}]})


def test_of_a_large_file_no_more_is_read_than_shows_that_it_is_too_large(tmp_path: Path) -> None:
    large = tmp_path / "large.yml"
    with large.open("wb") as file:
        file.truncate(1 << 40)
    assert len(read_regular(large, 1000)) == 1001
    with pytest.raises(Stop, match=r"larger than 4.*MiB") as caught:
        read_text(large, "config")
    assert caught.value.code == Exit.USAGE
    for option in ("accelerate", "deepspeed"):
        (tmp_path / "config.yml").write_text("base_model: a/b\n")
        with pytest.raises(Stop, match=rf"--{option}"):
            read(Asked(tmp_path / "config.yml", **{option: large}))  # type: ignore[arg-type]
    assert len(FolderFiles(tmp_path).read("large.yml") or b"") < 3 * LIMIT_TEXT_BYTES


def test_a_file_that_says_it_is_empty_is_no_way_around_the_limit() -> None:
    """Files of /proc have a size of 0."""
    assert Path("/proc/self/maps").stat().st_size == 0
    with pytest.raises(Stop, match="the limit is 4 B"):
        read_files({"maps": Path("/proc/self/maps")}, BundleLimits(bytes=4))


def test_what_may_be_read_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 3_000_000)
    assert read_regular(tmp_path / "a", 3_000_000) == b"x" * 3_000_000
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "b", 1)


def test_a_new_file_takes_no_name_that_is_taken(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("mine", "link", "dangling"):
        with pytest.raises(FileExistsError):
            write_new(tmp_path / name, b"new")
    write_new(tmp_path / "new", b"a\r\nb\n")
    assert (tmp_path / "new").read_bytes() == b"a\r\nb\n"
    assert (tmp_path / "mine").read_text() == "mine"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["dangling", "link", "mine", "new"]
