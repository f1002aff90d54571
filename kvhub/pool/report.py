"""What housekeeping says: facts as plain data, printed for people or as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

from kvhub import chunkfile
from kvhub.errors import KvhubError
from kvhub.pool.gc import Report
from kvhub.pool.look import check_head, check_whole, header_facts
from kvhub.pool.medium import SHARDS, Medium, Space
from kvhub.pool.select import Selection, facts, moment
from kvhub.pool.tally import Tally, by_age, total
from kvhub.pool.tenants import Tenants
from kvhub.pool.walk import Removed

_TOLD = ("model", "revision", "dtype", "chunk_tokens", "coordinates", "groups")


def show(plain: dict[str, Any], as_json: bool) -> None:
    """One report: JSON on one line, so that a watcher's output is lines, or a field per line."""
    if as_json:
        print(json.dumps(plain), flush=True)
    else:
        width = max(map(len, plain))
        print("\n".join(f"{name.ljust(width)}  {value}" for name, value in plain.items()), flush=True)


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def stats(medium: Medium, spaces: list[tuple[Space, Tally]]) -> dict[str, Any]:
    """Everything that `kvhub pool stats` knows."""
    now = medium.now()
    everything = total((tally for _, tally in spaces), now)
    room = medium.room()
    leftovers = sum(1 for _ in medium.leftovers(24 * 3600.0))
    return {
        "place": medium.describe(),
        "chunks": everything.chunks,
        "bytes": everything.bytes,
        "tails": sum(tally.tails for _, tally in spaces),
        "measured": moment(everything.at),
        "measured_seconds_ago": round(max(0.0, now - everything.at)),
        "free_bytes": room.free if room else None,
        "total_bytes": room.total if room else None,
        "leftovers": leftovers,
        "namespaces": [_namespace(space, tally) for space, tally in spaces],
        "unused": [{"for": name, "chunks": chunks, "bytes": size} for name, chunks, size in by_age(everything, now)],
    }


def _namespace(space: Space, tally: Tally) -> dict[str, Any]:
    told = facts(space)
    counts = {"chunks": tally.chunks, "bytes": tally.bytes, "tails": tally.tails}
    return {"id": space.id, **{name: told.get(name) for name in _TOLD}, **counts}


def tenant_facts(found: Tenants) -> dict[str, Any]:
    """Chunks by tenant's tag, the largest first; those without one apart."""
    rows = sorted(found.by_tag.items(), key=lambda row: -row[1].bytes)
    without = found.by_tag.get("", Removed())
    return {
        "tenants": [{"tag": tag, "chunks": each.chunks, "bytes": each.bytes} for tag, each in rows if tag],
        "without_a_tag": {"chunks": without.chunks, "bytes": without.bytes},
        "unreadable": found.unreadable,
    }


def show_stats(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(found))
        return
    print(
        f"{found['place']}: {found['chunks']} chunks, {size(found['bytes'])}, of them {found['tails']} tails and parts"
    )
    print(f"measured {found['measured_seconds_ago']} s ago; --exact lists anew")
    if found["total_bytes"] is not None:
        print(f"free: {size(found['free_bytes'])} of {size(found['total_bytes'])}")
    if found["leftovers"]:
        print(f"left over by dead writers: {found['leftovers']} files, which kvhub pool gc clears")
    for each in found["namespaces"]:
        name = f"{each['model'] or 'unknown model'} {each['revision'] or ''} {each['dtype'] or ''}".rstrip()
        print(f"  {each['id'][:12]}  {each['chunks']:>10}  {size(each['bytes']):>12}  {name}")
    for each in found["unused"]:
        print(f"  unused {each['for']:<14} {each['chunks']:>10}  {size(each['bytes']):>12}")

    for each in found.get("tenants", ()):
        print(f"  tenant {each['tag']} {each['chunks']:>10}  {size(each['bytes']):>12}")
    if without := found.get("without_a_tag"):
        print(f"  of no tenant, or from before there were tags: {without['chunks']} chunks, {size(without['bytes'])}")


def scan(medium: Medium, selection: Selection, after: str, most: int, as_json: bool) -> None:
    """A line per chunk, as it is listed: memory does not grow with the pool."""
    now, told = medium.now(), 0
    for space in selection.spaces(medium):
        for shard in SHARDS:
            if not selection.shard(shard) or shard < after[:2]:
                continue
            for entry in medium.entries(space.id, shard, after):
                if not selection.wants(medium, space.id, entry, now):
                    continue
                if as_json:
                    line = {"namespace": space.id, "key": entry.name, "bytes": entry.size, "used": round(entry.used, 3)}
                    print(json.dumps(line))
                else:
                    print(f"{space.id[:12]} {entry.name} {entry.size:>12} {moment(entry.used)}")
                told += 1
                if told == most:
                    return


def inspect(medium: Medium, selection: Selection, key: str, as_json: bool) -> int:
    """One key in every namespace that has it; 1 unless all are whole.  Raises KvhubError where none has it."""
    found = []
    for space in selection.spaces(medium):
        head = memoryview(bytearray(chunkfile.HEADER_BYTES))
        entry = medium.read(space.id, key, head)
        if entry is None:
            continue
        told: dict[str, Any] = {"space": space.id, "model": facts(space).get("model"), "bytes": entry.size}
        told["used"] = moment(entry.used)
        try:
            told |= header_facts(check_head(space.id, key, head, entry.size))
            whole = memoryview(bytearray(entry.size))
            medium.read(space.id, key, whole)
            check_whole(space.id, key, whole)
            told["verdict"] = "whole"
        except chunkfile.Foreign as why:
            told["verdict"] = f"foreign: {why.reason}"
        except chunkfile.Damaged as why:
            told["verdict"] = f"damaged: {why.reason}"
        found.append(told)
    if not found:
        raise KvhubError(f"{medium.describe()}: no chunk has the key {key}")
    if as_json:
        print(json.dumps(found))
    else:
        for told in found:
            show(told, False)
    return 0 if all(told["verdict"] == "whole" for told in found) else 1


def bad_chunk(space: str, name: str, reason: str) -> None:
    """One chunk that a scrub stumbled over, on stderr: stdout has the totals."""
    print(f"{space[:12]} {name} {reason}", file=sys.stderr)


def round_facts(done: Report) -> dict[str, Any]:
    return {
        "chunks": done.chunks,
        "bytes": done.bytes,
        "had_to_go": done.wanted,
        "removed_chunks": done.removed.chunks,
        "removed_bytes": done.removed.bytes,
        "left_chunks": done.left_chunks,
        "left_bytes": done.left_bytes,
        "leftovers_cleared": done.leftovers,
    }


def asked(question: str) -> bool:
    """Whether a person said yes; False where nobody is there to ask."""
    if not sys.stdin.isatty():
        return False
    print(f"{question}? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
