"""The few operations of SGLang's kernel package that a CPU run needs, in plain torch.  Tests only.

SGLang's own package exists for CUDA only, and `SGLANG_USE_CPU_ENGINE=1` makes it import names from here that are
called on processors with AMX alone.  Any other name can therefore be imported, and says so when it is called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch


def assign_req_to_token_pool_cpu(
    rows: torch.Tensor, table: torch.Tensor, start: torch.Tensor, end: torch.Tensor, places: torch.Tensor, _width: int
) -> None:
    """Write each request's new places into its row of the table, from `start` to `end`."""
    at = 0
    for row, first, last in zip(rows.tolist(), start.tolist(), end.tolist(), strict=True):
        table[row, first:last] = places[at : at + last - first].to(table.dtype)
        at += last - first


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name}: not among the operations that kvhub's CPU tests bring")

    return missing
