"""Purging: chunks go because somebody said so, whoever still uses them."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import attrs

from kvhub.errors import KvhubError, MisuseError
from kvhub.keys import Chain, Context, Namespace
from kvhub.pool.medium import Entry, Space
from kvhub.pool.select import Selection, facts
from kvhub.pool.tenants import readers
from kvhub.pool.walk import Removed, Walk

_NOTHING = memoryview(bytearray())


@attrs.frozen
class Purged:
    """What a purge took away, or in a dry run would have."""

    removed: Removed
    forgotten: tuple[str, ...]
    """Namespaces of which nothing is left."""
    untagged: int | None = None
    """By tenant: chunks that stayed and carry no tag, being of no tenant or from before there were tags."""


def purge(walk: Walk, selection: Selection) -> Purged:
    """Remove the selected chunks.  Raises Stopped, ConfigError and OSError of the medium."""
    medium, spaces = walk.medium, [space.id for space in selection.spaces(walk.medium)]
    now, untagged = medium.now(), itertools.count()

    def wanted(space: str, entry: Entry) -> bool:
        wants, header = selection.looked(medium, space, entry, now)
        if header is not None and not header.tenant:
            next(untagged)
        return wants

    with readers() as threads, contextlib.closing(walk.shards(lambda shard: not selection.shard(shard))) as shards:
        ahead = threads if selection.by_header else None
        for shard in shards:
            walk.pace.show(f"purging shard {shard}, {walk.removed.chunks} chunks removed")
            measured = {space: walk.sweep(space, shard, partial(wanted, space), ahead=ahead) for space in spaces}
            walk.keep(shard, measured)
    gone = []
    if selection.whole_spaces and not walk.dry:
        gone = [space for space in spaces if medium.forget(space)]
    return Purged(walk.removed, tuple(gone), next(untagged) if selection.tenant else None)


def purge_prompts(
    walk: Walk, selection: Selection, prompts: Iterable[list[int]], *, salt: str | None, adapter: str | None
) -> Removed:
    """Remove what these prompts (token ids, answers included where those are to go) left under one salt.

    Also finds chunks without a tenant's tag, from before there were tags: by computing their keys anew, since keys are
    one-way.  Prompts with images are not covered.
    """
    spaces = [(space.id, _namespace(space)) for space in selection.spaces(walk.medium)]
    done: set[tuple[str, str]] = set()  # prompts share their beginnings
    for prompt in prompts:
        for space, namespace in spaces:
            walk.pace.check()
            names = [name for name in _names(namespace, Context(adapter, salt), prompt) if (space, name) not in done]
            done.update((space, name) for name in names)
            entries = [entry for name in names if (entry := walk.medium.read(space, name, _NOTHING)) is not None]
            if not walk.dry and entries:
                walk.pace.take(objects=len(entries))
                entries = walk.medium.remove(space, entries)
            walk.removed.add(len(entries), sum(entry.size for entry in entries))
    return walk.removed


def _names(namespace: Namespace, context: Context, prompt: list[int]) -> Iterator[str]:
    """Names of every chunk, part and tail that a prompt's tokens can have left."""
    chain = Chain(context.root(namespace), namespace.chunk_tokens)
    chain.extend(prompt)
    for key in chain.keys:
        yield key.hex()
    for chunks in range(len(chain.keys) + 1):
        yield chain.tail_key(chunks).hex()
    for tokens in range(1, len(prompt) + 1):
        if tokens % namespace.chunk_tokens:
            yield chain.part_key(tokens).hex()


def _namespace(space: Space) -> Namespace:
    """The namespace that a space's text describes.  Raises KvhubError where it is not the one that the space is of."""
    fields = dict(facts(space))
    fields.pop("key_version", None)
    for name in ("coordinates", "extra"):
        fields[name] = tuple(tuple(each) for each in fields.get(name, ()))
    try:
        namespace = Namespace(**fields)
        if namespace.digest.hex().startswith(space.id):
            return namespace
    except (TypeError, ValueError, AttributeError):
        pass
    raise KvhubError(
        f"namespace {space.id}: its namespace.json does not describe it, so keys cannot be computed; "
        "purge the whole namespace instead"
    )


def read_prompts(path: str) -> list[list[int]]:
    """One JSON list of token ids per line.  Raises KvhubError with the line."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise KvhubError(f"{path}: cannot be read: {error}") from error
    prompts = []
    for number, line in enumerate(lines, 1):
        try:
            tokens = json.loads(line)
            Chain(bytes(32), 1).extend(tokens)
        except (ValueError, TypeError, MisuseError) as error:
            raise KvhubError(f"{path}:{number}: expected a JSON list of token ids: {error}") from error
        prompts.append(tokens)
    return prompts
