"""The engine laws through SGLang's real pools, in every host memory layout that it offers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import kvhub_sglang.storage
import pytest
from harness.hicache_engine import PAGE, HiCacheEngine

from kvhub.testing import EngineContract
from kvhub.testing.engine_driver import DriverFactory

pytestmark = pytest.mark.sglang


_PAGES = "HiCache stores whole pages: there are no tails, and what is left behind the last page is computed"
_NEVER = (
    "adapters have ids of their own here, and placeholders are never kept (test_A03_..., test_A02_... of the ledger); "
    "an empty salt is none"
)
EXCUSES = {
    "test_F11_a_new_tail_replaces_the_old_one": _PAGES,
    "test_F01_generated_tokens_are_told_from_given_ones": f"{_PAGES}; SGLang does not tell which tokens it generated",
    "test_A15_no_chunk_is_stored_before_it_is_full": f"{_PAGES}; the law counts the tail",
    "test_B14_an_idle_engine_ends_its_copies": f"{_PAGES}; the law's prompt ends with a tail",
    "test_another_layout_is_converted_or_missed": f"{_PAGES}; test_every_layout_reads_what_another_wrote has the rest",
    "test_A10_live_blocks_stay_as_they_are": "a page is a chunk: none is ever loaded in part, the law's subject",
    "test_B05_what_arrives_too_late_is_given_back": "of a prompt of whole pages HiCache computes the last page itself",
    "test_A12_what_is_being_read_is_not_given_away": "prefetches end one by one: the two never start in one step",
    "test_A09_what_the_engine_lost_since_the_search_is_searched_for": "a prefetch that lost its place is done again",
    "test_B03_one_request_never_releases_for_another": "HiCache gets for one request at a time: two loads never meet",
    "test_A01_keys_are_equal_in_every_process": f"the law's request has an adapter: {_NEVER}",
    "test_A02_A03_A05_A08_contexts_do_not_share": _NEVER,
}
"""Laws that HiCache's shape leaves no room for, and why.  Laws of peers, drafts and opaque blocks are left out by the
driver, with its reasons."""


class HiCacheContract(EngineContract):
    block, chunk, memory = PAGE, PAGE, "2MiB"
    excuses: ClassVar[dict[str, str]] = EXCUSES
    layout: ClassVar[str]

    @pytest.fixture
    def pool(self, tmp_path: Path) -> Mapping[str, Any]:
        folder = tmp_path / "pool"
        folder.mkdir()
        return {"use": "nfs", "root": str(folder)}

    @pytest.fixture
    def wire(self) -> Mapping[str, Any]:
        return {"use": "tcp"}

    @pytest.fixture
    def driver_factory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DriverFactory:
        def read(model: Any) -> None:
            monkeypatch.setattr(kvhub_sglang.storage, "read_model", lambda: model)

        return lambda config, role, setup: HiCacheEngine(
            config, role, setup, layout=self.layout, folder=tmp_path, read=read
        )


class TestPageFirst(HiCacheContract):
    layout = "page_first"


class TestPageFirstDirect(HiCacheContract):
    layout = "page_first_direct"


class TestPageHead(HiCacheContract):
    layout = "page_head"


class TestLayerFirst(HiCacheContract):
    layout = "layer_first"
