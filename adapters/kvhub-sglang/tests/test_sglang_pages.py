"""Pages through SGLang's own pools: device to host to pool and back into other places, byte for byte."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from harness.hicache import LAYOUTS, PAGE, Stack, Start, same

pytestmark = pytest.mark.sglang
PLACES = [(kind, layout) for kind, layouts in LAYOUTS.items() for layout in layouts]


@pytest.mark.parametrize("mode", ["v1", "v2", "flat"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e5m2])
@pytest.mark.parametrize(("kind", "layout"), PLACES)
def test_what_is_stored_comes_back_byte_for_byte(
    start: Start, kind: str, layout: str, dtype: torch.dtype, mode: str
) -> None:
    stack = start(kind, layout, dtype=dtype, zero_copy=mode != "flat")
    keys, before = stack.stored(6, mode=mode)
    assert stack.backend.batch_exists([*keys, "0" * 64]) == 6
    assert stack.backend.batch_exists_v2(keys).kv_hit_pages == 6
    count, after = stack.loaded(keys, mode=mode)
    assert count == 6 and same(before, after)


@pytest.mark.parametrize("kind", ["mha", "mla"])
def test_every_layout_reads_what_another_wrote(start: Start, kind: str) -> None:
    """Fault 1 of storage backends: pages of equal size and another order were served as they lay."""
    for number, writer in enumerate(LAYOUTS[kind]):
        source = start(kind, writer)
        for mode in ("v1", "flat"):
            keys, before = source.stored(5, mode=mode, seed=2 * number + (mode == "flat"))
            for reader in LAYOUTS[kind]:
                target = start(kind, reader, zero_copy=mode == "v1")
                target.hashes(target.tokens(5, 2 * number + (mode == "flat")))
                count, after = target.loaded(keys, mode=mode)
                assert count == 5 and same(before, after), f"{writer} read as {reader}"


def test_torch_copies_as_the_library_does(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no compiler was at install, torch copies: the same bytes."""
    keys, before = start("mha", "layer_first").stored(5)
    monkeypatch.setattr("kvhub_sglang.pages.native", False)
    for layout in LAYOUTS["mha"]:
        stack = start("mha", layout)
        stack.hashes(stack.tokens(5, 0))
        count, after = stack.loaded(keys)
        assert count == 5 and same(before, after)


def test_a_conversion_touches_no_other_page(start: Start) -> None:
    """Beside the pages that were asked for every byte of the host pool stays as it was."""
    keys, _ = start("mha", "layer_first").stored(3)
    for layout in LAYOUTS["mha"]:
        stack = start("mha", layout)
        stack.hashes(stack.tokens(3, 0))
        stack.host.kv_buffer.view(torch.uint8).fill_(0xAA)
        slots = stack.host_slots(3)
        assert stack.take("v1", keys, slots) == [True] * 3
        after = stack.host.kv_buffer.view(torch.uint8)
        used = {int(slot) // PAGE for slot in slots}
        stack.host.free(slots)
        for page in range(int(stack.host.size) // PAGE):
            whole = bool((_page(stack, after, page) == 0xAA).all())
            assert whole == (page not in used)


def _page(stack: Stack, raw: torch.Tensor, page: int) -> torch.Tensor:
    at = slice(page * PAGE, (page + 1) * PAGE)
    return {"layer_first": lambda: raw[:, :, at], "page_first": lambda: raw[:, at]}.get(
        stack.layout, lambda: raw[:, page]
    )()


def test_slots_that_are_no_whole_page_are_refused(start: Start) -> None:
    stack = start()
    keys, _ = stack.stored(2)
    shifted = torch.arange(2 * PAGE) + 3
    assert stack.take("v1", keys, shifted) == [False, False]
    outside = torch.arange(2 * PAGE) + int(stack.host.size)
    assert stack.take("v1", keys, outside) == [False, False]
    assert stack.take("v1", keys, torch.arange(PAGE)) == [False, False]


def test_a_pool_that_is_packed_otherwise_is_refused(start: Start, pool: Path) -> None:
    from kvhub_sglang.pages import HostPages

    from kvhub.errors import LayoutError

    host = start().host
    host.kv_buffer = host.kv_buffer.transpose(1, 2).contiguous()
    with pytest.raises(LayoutError, match="packs pages in a way"):
        HostPages(host)
    host.layout = "page_unified"
    with pytest.raises(LayoutError, match="--hicache-mem-layout"):
        HostPages(host)
