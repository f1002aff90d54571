"""Reads and writes past the page cache: the same files, the same answers, and what happens where that is refused."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path

import pytest

from kvhub.errors import KvhubError
from kvhub.testing.region import make_context, make_key, make_payload
from kvhub_nfs import DirectoryStore, LocalStore, files, store

HEADER = os.urandom(4096)
LENGTHS = [0, 1, 4095, 4096, 4097, 8192, 100_000, 1 << 20]


def aligned(data: bytes, room: int = 0) -> memoryview:
    view = memoryview(mmap.mmap(-1, max(len(data), room, 1)))
    view[: len(data)] = data
    return view[: max(len(data), room)]


@pytest.fixture
def direct(tmp_path: Path) -> None:
    if not files.takes_direct(str(tmp_path / "probe")):
        pytest.skip(f"the file system of {tmp_path} takes no O_DIRECT")


@pytest.mark.usefixtures("direct")
@pytest.mark.parametrize("length", LENGTHS)
def test_files_are_the_same_whichever_way_they_are_written_and_read(tmp_path: Path, length: int) -> None:
    data = make_payload(length, length)
    paths = [str(tmp_path / way) for way in ("direct", "buffered")]
    for path in paths:
        files.write_whole(path, HEADER, aligned(data)[:length], fsync=False, direct=path == paths[0])
        assert Path(path).read_bytes() == HEADER + data
        for direct in (True, False):
            # Room as in a slot: whole blocks, and a block more than the payload.
            head, room = memoryview(bytearray(4096)), aligned(b"", (length // 4096 + 2) * 4096)
            found = files.read_into(path, head, room, direct=direct)
            assert found is not None and found[0] == 4096 + length
            assert (bytes(head), bytes(room[:length])) == (HEADER, data)


@pytest.mark.usefixtures("direct")
@pytest.mark.parametrize("room", [0, 100, 4096, 5000])
def test_a_room_smaller_than_the_file_is_filled_and_no_more(tmp_path: Path, room: int) -> None:
    path = str(tmp_path / "file")
    data = make_payload("room", 20_000)
    files.write_whole(path, HEADER, aligned(data)[:20_000], fsync=True, direct=True)
    head, memory = memoryview(bytearray(4096)), aligned(b"\x77" * 8192)
    found = files.read_into(path, head, memory[:room], direct=True)
    assert found is not None and found[0] == 24_096
    assert bytes(memory) == data[:room] + b"\x77" * (8192 - room)


@pytest.mark.usefixtures("direct")
def test_memory_that_is_not_aligned_goes_through_the_page_cache(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    data = make_payload("crooked", 8192)
    files.write_whole(path, HEADER, aligned(b"x" + data)[1:8193], fsync=False, direct=True)
    head, room = memoryview(bytearray(4096)), aligned(b"", 12_288)[1:8193]
    assert files.read_into(path, head, room, direct=True)
    assert (bytes(head), bytes(room)) == (HEADER, data)


def refuse_direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Linux does it where a file system has no direct I/O: EINVAL, and the new file is there all the same."""
    real = os.open

    def refusing(path: str, flags: int, mode: int = 0o777) -> int:
        fd = real(path, flags & ~os.O_DIRECT, mode)
        if not flags & os.O_DIRECT:
            return fd
        os.close(fd)
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "open", refusing)


def test_a_file_system_without_direct_io_is_used_through_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_direct(monkeypatch)
    assert not files.takes_direct(str(tmp_path / "probe"))
    path = str(tmp_path / "file")
    files.write_whole(path, HEADER, aligned(b"data"), fsync=False, direct=True)
    head, room = memoryview(bytearray(4096)), aligned(b"", 4096)
    assert files.read_into(path, head, room, direct=True)
    assert (bytes(head), bytes(room[:4])) == (HEADER, b"data")
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_direct_that_is_asked_for_and_refused_stops_the_start(open_pool, tmp_path: Path, monkeypatch) -> None:
    refuse_direct(monkeypatch)
    with pytest.raises(
        KvhubError, match=rf"pool: io: direct is not taken by the file system of {tmp_path} \(O_DIRECT\)"
    ):
        open_pool(io="direct")
    open_pool(io="auto").keep({make_key("x"): b"x"})
    assert [*tmp_path.rglob("probe*")] == []


def test_an_unknown_way_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'io' must be in"):
        DirectoryStore.Config(root=tmp_path, io="mmap")


@pytest.mark.usefixtures("direct")
@pytest.mark.parametrize(
    ("kind", "way", "length", "expected"),
    [
        (DirectoryStore, "auto", store.DIRECT_FROM, False),
        (LocalStore, "auto", store.DIRECT_FROM, True),
        (LocalStore, "auto", store.DIRECT_FROM - 1, False),
        (LocalStore, "buffered", store.DIRECT_FROM, False),
        (DirectoryStore, "direct", store.DIRECT_FROM, True),
    ],
)
def test_which_way_a_chunk_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[DirectoryStore], way: str, length: int, expected: bool
) -> None:
    made = kind(kind.Config(root=tmp_path, io=way), make_context("pool"))
    made.open()
    real, seen = os.open, list[bool]()

    def watched(path: str, flags: int, mode: int = 0o777) -> int:
        seen.append(bool(flags & os.O_DIRECT))
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", watched)
    data = aligned(make_payload("way", length))
    assert made.write("ab" * 32, HEADER, data)
    assert made.read("ab" * 32, memoryview(bytearray(4096)), data) == 4096 + length
    made.shut()
    assert seen == [expected, expected]
