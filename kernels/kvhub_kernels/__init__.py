"""kvhub_kernels: copies KV between an engine's blocks and kvhub's slots, one call per batch, all layers.

    engine = EngineBlocks(layers, layout)                  # refused if tensors and layout contradict each other
    arena = arena_tensor(region.view, region.slots, region.slot_bytes)
    gather(engine, arena, plan)                            # blocks to slots
    scatter(engine, arena, plan, source=layout_of_payload) # slots to blocks, converting where the layouts differ

A slot holds a chunk's payload block after block, each block all layers, as `kvhub.layout` orders it.  Layouts that
engines are known to use are built by `kvhub_kernels.known`.

On CPUs a small C library does the copying if a compiler was there at install (`native`), torch otherwise; CUDA tensors
go through Triton.  All of them write the tokens of the plan and not one byte more.
"""

from kvhub_kernels import known
from kvhub_kernels.arena import arena_tensor
from kvhub_kernels.blocks import EngineBlocks
from kvhub_kernels.copying import convert, gather, native, require_convertible, scatter
from kvhub_kernels.plan import Plan

__all__ = [
    "EngineBlocks",
    "Plan",
    "arena_tensor",
    "convert",
    "gather",
    "known",
    "native",
    "require_convertible",
    "scatter",
]
