"""`Tap`: a test's hand on one member of a running hub."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs

from kvhub.hub import Hub
from kvhub.types import Batch, Completion, Key, Op, Outcome


class Tap:
    """Sees every batch of a member; can hold batches back and change how they end.

    It sits on the live member's `submit` and `poll`, so it works on any hub, however that was opened.
    """

    def __init__(self, hub: Hub, name: str) -> None:
        self.hub = hub
        self.batches: list[Batch] = []
        """Everything that was submitted, in order."""
        self.held: list[Batch] = []
        self.holds: frozenset[Op] = frozenset()
        """Batches of these operations are kept from the member until `release`."""
        self.change: Callable[[Batch, Completion], Completion] = lambda batch, completion: completion
        self.extra: list[Completion] = []
        """Completions that nobody asked for, to be delivered with the next ones."""
        self._known: dict[int, Batch] = {}
        member = hub.members[name]
        self._submit, self._poll = member.submit, member.poll
        # Instance attributes, since the hub calls the member through its instance.
        vars(member).update(submit=self._on_submit, poll=self._on_poll)

    def _on_submit(self, batch: Batch) -> None:
        self.batches.append(batch)
        self._known[batch.id] = batch
        if batch.op in self.holds:
            self.held.append(batch)
        else:
            self._submit(batch)

    def _on_poll(self) -> list[Completion]:
        extra, self.extra = self.extra, []
        found = [self.change(self._known[done.id], done) for done in self._poll()]
        return found + extra

    def hold(self, *ops: Op) -> None:
        self.holds = frozenset(ops)

    def release(self) -> None:
        """Hold nothing any more; what was held goes to the member now, whatever its deadline says."""
        self.holds = frozenset()
        held, self.held = self.held, []
        for batch in held:
            self._submit(attrs.evolve(batch, deadline=float("inf")))

    def spoil(self, outcome: Outcome, keys: Iterable[Key] | None = None, *, op: Op = Op.LOAD) -> None:
        """From now on batches of `op` end with `outcome` for these keys (all keys if None), whatever the member did."""
        wanted = None if keys is None else frozenset(keys)

        def change(batch: Batch, completion: Completion) -> Completion:
            if batch.op is not op:
                return completion
            hit = [wanted is None or key in wanted for key in batch.keys]
            return attrs.evolve(
                completion,
                outcomes=tuple(outcome if bad else old for bad, old in zip(hit, completion.outcomes, strict=True)),
                lengths=tuple(
                    0 if bad and not outcome.good else old
                    for bad, old in zip(hit, completion.lengths or (0,) * len(hit), strict=True)
                ),
                reason="spoiled" if any(hit) else completion.reason,
            )

        self.change = change

    def keys(self, op: Op) -> list[Key]:
        """Every key of every batch of this operation, in order."""
        return [key for batch in list(self.batches) if batch.op is op for key in batch.keys]

    def ops(self) -> set[Op]:
        return {batch.op for batch in list(self.batches)}
