"""Whether a directory can be worked in, found out at start by a real write, read and delete; one sentence if not."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from pathlib import Path

from kvhub.errors import KvhubError
from kvhub_nfs import files
from kvhub_nfs.scratch import Scratch

_ADVICE = {
    errno.ENOENT: "does not exist; mount or create it, then start again",
    errno.ENOTDIR: "is not a directory; name the directory that is to hold the chunks",
    errno.EROFS: "is on a read-only file system; mount it read-write or name another root",
    errno.ENOSPC: "has no space left (ENOSPC); free some or name another root",
    errno.EDQUOT: "is over its quota (EDQUOT); free some, raise the quota or name another root",
    errno.EACCES: "does not permit uid {uid} to write (EACCES); change its owner, group or mode",
    errno.EPERM: "does not permit uid {uid} to write (EPERM); change its owner, group or mode",
    errno.ESTALE: "is a stale file handle (ESTALE): its server exports something else now; mount it anew",
}
_OTHER = "failed when probed with a write, a read and a delete: {error}; check the mount and its server"


def advice(root: Path, error: OSError) -> str:
    """The sentence for an operator whose directory failed with `error`."""
    return f"root {root} {_ADVICE.get(error.errno or 0, _OTHER).format(uid=os.geteuid(), error=error)}"


def refusal(member: str, root: Path, error: OSError) -> KvhubError:
    """The same, for the start of a member."""
    return KvhubError(f"{member}: {advice(root, error)}")


def write_read_delete(scratch: Scratch) -> None:
    """Write a file, publish it by rename, read it back and delete it.  Raises OSError."""
    unfinished, published = Path(scratch.fresh()), Path(scratch.fresh())
    header, payload = os.urandom(4096), memoryview(os.urandom(4096))
    try:
        files.write_whole(str(unfinished), header, payload, fsync=True)
        unfinished.rename(published)
        back, rest = memoryview(bytearray(4096)), memoryview(bytearray(4096))
        files.read_into(str(published), back, rest)
        if back != header or rest != payload:
            raise OSError(errno.EIO, "what was read is not what was written")
        published.unlink()
    except BaseException:
        for path in (unfinished, published):
            with contextlib.suppress(OSError):
                path.unlink()
        raise


def look(member: str, root: Path, path: Path, namespace_json: str) -> None:
    """The probe of a role that only retrieves: list the root, read the namespace if one is written there.

    Raises KvhubError for another namespace, OSError when the file system fails.
    """
    next(os.scandir(root), None)
    with contextlib.suppress(FileNotFoundError):
        _compare(member, path, path.read_text(), namespace_json)


def hold_to_namespace(member: str, path: Path, namespace_json: str, scratch: Scratch) -> None:
    """Write the namespace beside its chunks, or find that the same is written there.

    Raises KvhubError when another namespace is, OSError when the file system fails.
    """
    try:
        text = path.read_text()
    except FileNotFoundError:
        unfinished = Path(scratch.fresh())
        files.write_whole(str(unfinished), namespace_json.encode(), memoryview(b""), fsync=True)
        unfinished.rename(path)
        text = path.read_text()
    _compare(member, path, text, namespace_json)


def _compare(member: str, path: Path, text: str, namespace_json: str) -> None:
    mine = json.loads(namespace_json)
    try:
        theirs = json.loads(text)
    except ValueError:
        theirs = None
    if not isinstance(theirs, dict):
        raise KvhubError(f"{member}: {path} is no JSON object; delete that one file, then start again")
    if theirs != mine:
        differing = sorted(name for name in {*theirs, *mine} if theirs.get(name) != mine.get(name))
        raise KvhubError(
            f"{member}: {path} tells of another namespace than this hub's: {', '.join(differing)} differ; "
            "its chunks cannot be told from ours, so move that directory away or name another root"
        )
