"""kvhub's arena as torch sees it."""

from __future__ import annotations

import torch

from kvhub.errors import MisuseError


def arena_tensor(view: memoryview, slots: int, slot_bytes: int) -> torch.Tensor:
    """uint8 [slots, slot_bytes] over `view` (a region's `view`), without a copy.

    The tensor holds an export of the view: drop it before the shared memory is closed, or closing raises BufferError.
    Raises MisuseError for a read-only view or one of another size.
    """
    view = memoryview(view)
    if view.readonly or view.nbytes != slots * slot_bytes or not view.c_contiguous:
        raise MisuseError(
            f"an arena of {slots} slots of {slot_bytes} bytes needs a writable, contiguous view of "
            f"{slots * slot_bytes} bytes, found {view.nbytes} bytes{', read-only' if view.readonly else ''}; "
            "hand over the view of the region that was attached"
        )
    return torch.frombuffer(view.cast("B"), dtype=torch.uint8).view(slots, slot_bytes)
