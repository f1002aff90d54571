"""The scheduler's half: translates vLLM's scheduler calls into a session's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kvhub.config import Config, load
from kvhub.engine import EngineFacts
from kvhub.errors import KvhubError
from kvhub.hub import Hub
from kvhub.layout import Layout
from kvhub.plan import Report, StepPlan
from kvhub.plugins import Registry
from kvhub.requests import Finish, stream_of
from kvhub.session import Session
from kvhub_vllm.context import context_of
from kvhub_vllm.facts import check_engine, namespace
from kvhub_vllm.metrics import KvhubStats, StatsTap


class SchedulerSide:
    """One per engine core.  The hub opens once the workers have said what their KV looks like."""

    def __init__(self, config: Any, kv_cache_config: Any, source: Any, role: str, engine: str) -> None:
        self._vllm = config
        self._kv_cache_config = kv_cache_config
        self._role = role
        self._engine = engine
        self._registry = Registry()
        self._config: Config = load(source, self._registry, role=role)
        chosen = self._config.roles.get(role)
        if chosen is None:
            raise KvhubError(f"roles.{role}: this role is not in {self._config.path}; "
                             f"found {', '.join(self._config.roles)}")  # fmt: skip
        check_engine(config, kv_cache_config, role, bool(chosen.store), bool(chosen.retrieve))
        self.session: Session | None = None
        self._tap = StatsTap()
        self._requests: dict[str, Any] = {}
        self._tables: dict[str, list[int]] = {}
        self._sources: dict[str, tuple[tuple[str, int], ...]] = {}

    def open(self, layout: Layout, block_tokens: int) -> None:
        """Open the hub for the layout that the workers proved.  Raises KvhubError; the engine's start then stops."""
        chunk_tokens = self._config.chunk_tokens
        if self._config.origin.get("chunk_tokens", "default") == "default":
            chunk_tokens = max(chunk_tokens, block_tokens)
        facts = EngineFacts(
            self._engine,
            self._role,
            namespace(self._vllm, self._kv_cache_config, self._config.model, chunk_tokens),
            layout,
            block_tokens,
            int(self._vllm.model_config.max_model_len),
        )
        self.session = Session(Hub.open(self._config, facts, registry=self._registry))

    @property
    def _live(self) -> Session:
        if self.session is None:
            raise KvhubError("kvhub in vLLM: no worker has told its KV layout; this engine sends no handshake metadata")
        return self.session

    # -- requests --------------------------------------------------------------------------------------------------

    def arrived(self, request: Any) -> None:
        """`on_new_request`: a prompt that a decode pulls while it is computed begins before it is scheduled."""
        if self.session is not None and stream_of(request.kv_transfer_params):
            self._begin(request)

    def _begin(self, request: Any) -> bool:
        name = request.request_id
        if not self._live.knows(name):
            context = context_of(request)
            if context is None:
                self._live.hub.reports.count("uncacheable")
                return False
            self._live.begin(name, request.all_token_ids, context, request.kv_transfer_params)
            self._requests[name] = request
        return True

    def matched(self, request: Any, computed: int) -> tuple[int | None, bool]:
        """`get_num_new_matched_tokens`: tokens that can be loaded, always asynchronously; None is 'ask again'."""
        name = request.request_id
        if not self._begin(request):
            return 0, False
        extra = self._live.lookup(name, computed)
        if extra is None:
            return None, False
        return extra, extra > 0

    def allocated(self, request: Any, blocks: Any, external: int) -> None:
        """`update_state_after_alloc`."""
        name = request.request_id
        (table,) = blocks.get_block_ids()
        if not self._live.knows(name) and external == 0:
            return
        self._live.allocated(name, list(table), external)

    def step(self, output: Any) -> StepPlan:
        """`build_connector_meta`: what the worker should copy in the step that `output` describes."""
        session = self._live
        idle = not output.total_num_scheduled_tokens
        if idle:
            session.rest()
        state = getattr(output, "kv_connector_block_state", None)
        if state is None:
            self._follow_tables(output)
        scheduled = output.num_scheduled_tokens
        before = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        cached = output.scheduled_cached_reqs
        before.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        for name, request in self._requests.items():
            if name not in scheduled and request.num_preemptions and str(request.status).endswith("PREEMPTED"):
                session.preempted(name)
        for name, computed in before.items():
            if name not in self._requests:
                continue
            if state is not None:
                (table,) = state.get_block_ids(name)
            else:
                table = self._tables[name]
            # A token that is known is accepted; what is scheduled beyond the known ones is a draft.
            session.advance(name, computed + scheduled.get(name, 0), table)
        return session.plan(idle=idle)

    def _follow_tables(self, output: Any) -> None:
        """Block tables of versions that do not hand them over: append what each step adds."""
        for new in output.scheduled_new_reqs:
            self._tables[new.req_id] = list(new.block_ids[0])
        cached = output.scheduled_cached_reqs
        for at, name in enumerate(cached.req_ids):
            added = cached.new_block_ids[at]
            if added is None:
                continue
            if name in cached.resumed_req_ids or name not in self._tables:
                self._tables[name] = list(added[0])
            else:
                self._tables[name].extend(added[0])

    def finished(self, request: Any, blocks: Iterable[int]) -> tuple[bool, dict[str, Any] | None]:
        """`request_finished`: (keep the blocks until the worker says so, parameters for the decode leg)."""
        name = request.request_id
        self._requests.pop(name, None)
        self._tables.pop(name, None)
        if self.session is None:
            return False, None
        if not self.session.knows(name):
            # It ended before anything was looked up for it, or must not be cached: a prefill may keep a promise.
            self.session.decline(request.kv_transfer_params)
            return False, None
        aborted = not str(request.status).endswith(("FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED"))
        # The last sampled token has no KV yet; drafts that were scheduled beyond the known tokens never will.
        computed = min(request.num_computed_tokens, request.num_tokens - 1)
        end: Finish = self.session.finish(name, computed, list(blocks), aborted=aborted)
        return end.hold, end.params

    # -- the worker's answers --------------------------------------------------------------------------------------

    def report(self, report: Report) -> None:
        """Copies that the worker has ended."""
        self._live.done(report)

    def busy(self) -> bool:
        """Whether the engine should step although no request runs."""
        return self.session is not None and self.session.busy()

    def reset(self) -> bool:
        """`reset_cache`: empty the host tier.  Pools keep their chunks: new weights need a new `model.revision`."""
        if self.session is not None:
            hub = self.session.hub
            hub.reports.event("host.reset", chunks=sum(hub.arena.forget(key) for key in tuple(hub.arena.keys())))
        return True

    def stats(self) -> KvhubStats | None:
        """What the hub counted since the last call."""
        return self._tap.take(self.session.hub.reports.counts()) if self.session is not None else None

    def counts(self) -> Mapping[str, int]:
        """Open work by kind, for tests and shutdown."""
        if self.session is None:
            return {}
        return {**self.session.counts(), **self.session.hub.counts()}

    def close(self) -> None:
        if self.session is not None:
            self.session.close()
