"""HiCache's copies between device and host pools where both are CPU memory.  Tests only.

Names and arguments are those that SGLang 0.5.23 uses in `mem_cache/pool_host/{mha,mla}.py`.  A name says which way a
copy goes: `lf` is one buffer per layer, `pf` token by token, `ph` head by head, `direct` page by page.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch


def _at(index: torch.Tensor) -> torch.Tensor:
    return index.to("cpu", torch.int64)


def _rows(address: Any, index: torch.Tensor, size: int) -> torch.Tensor:
    """uint8 [rows, size] over raw memory, up to the last row that is asked for."""
    rows = int(index.max()) + 1
    memory = (ctypes.c_uint8 * (rows * size)).from_address(int(address))
    return torch.frombuffer(memory, dtype=torch.uint8).view(rows, size)


def transfer_kv_direct(
    src_layers: Sequence[torch.Tensor], dst_layers: Sequence[torch.Tensor], src_indices: Any, dst_indices: Any, **_: Any
) -> None:
    for source, target in zip(src_layers, dst_layers, strict=True):
        target[_at(dst_indices)] = source[_at(src_indices)]


def transfer_kv_per_layer_direct_pf_lf(
    src_ptrs: Any, dst_ptrs: Any, src_indices: Any, dst_indices: Any, layer_id: int, page_size: int
) -> None:
    at = _at(src_indices)
    for source, target in zip(src_ptrs, dst_ptrs, strict=True):
        target[_at(dst_indices)] = source[at // page_size, layer_id, at % page_size]


def transfer_kv_all_layer_direct_lf_pf(
    src_ptrs: Any, dst_ptrs: Any, src_indices: Any, dst_indices: Any, page_size: int
) -> None:
    at = _at(dst_indices)
    layers = len(src_ptrs) // len(dst_ptrs)
    for number, source in enumerate(src_ptrs):
        dst_ptrs[number // layers][at // page_size, number % layers, at % page_size] = source[_at(src_indices)]


def transfer_kv_per_layer(
    src_k: Any, dst_k: Any, src_v: Any, dst_v: Any, src_indices: Any, dst_indices: Any, item_size: int, **_: Any
) -> None:
    for source, target in ((src_k, dst_k), (src_v, dst_v)):
        transfer_kv_per_layer_mla(source, target, src_indices, dst_indices, item_size)


def transfer_kv_per_layer_mla(src: Any, dst: Any, src_indices: Any, dst_indices: Any, item_size: int, **_: Any) -> None:
    to = _at(dst_indices)
    dst[to] = src[_at(src_indices)].reshape(dst[to].shape)


def transfer_kv_all_layer(
    src_k_layers: Any, dst_k_layers: Any, src_v_layers: Any, dst_v_layers: Any, src_indices: Any, dst_indices: Any,
    item_size: int, num_layers: int, **_: Any,
) -> None:  # fmt: skip
    for sources, targets in ((src_k_layers, dst_k_layers), (src_v_layers, dst_v_layers)):
        transfer_kv_all_layer_mla(sources, targets, src_indices, dst_indices, item_size, num_layers)


def transfer_kv_all_layer_mla(
    src_layers: Any, dst_layers: Any, src_indices: Any, dst_indices: Any, item_size: int, num_layers: int, **_: Any
) -> None:
    at, to = _at(src_indices), _at(dst_indices)
    for layer in range(num_layers):
        _rows(dst_layers[layer], to, item_size)[to] = _rows(src_layers[layer], at, item_size)[at]


def transfer_kv_per_layer_pf_lf(
    src_k: Any, dst_k: Any, src_v: Any, dst_v: Any, src_indices: Any, dst_indices: Any, layer_id: int, item_size: int,
    src_layout_dim: int, **_: Any,
) -> None:  # fmt: skip
    for source, target in ((src_k, dst_k), (src_v, dst_v)):
        transfer_kv_per_layer_mla_pf_lf(source, target, src_indices, dst_indices, layer_id, item_size, src_layout_dim)


def transfer_kv_per_layer_mla_pf_lf(
    src: Any, dst: Any, src_indices: Any, dst_indices: Any, layer_id: int, item_size: int, src_layout_dim: int, **_: Any
) -> None:
    to = _at(dst_indices)
    dst[to] = src[_at(src_indices), layer_id].reshape(dst[to].shape)


def transfer_kv_all_layer_lf_pf(
    src_k_layers: Any, dst_k: Any, src_v_layers: Any, dst_v: Any, src_indices: Any, dst_indices: Any, item_size: int,
    dst_layout_dim: int, num_layers: int, **_: Any,
) -> None:  # fmt: skip
    for sources, target in ((src_k_layers, dst_k), (src_v_layers, dst_v)):
        transfer_kv_all_layer_mla_lf_pf(
            sources, target, src_indices, dst_indices, item_size, dst_layout_dim, num_layers
        )


def transfer_kv_all_layer_mla_lf_pf(
    src_layers: Any, dst: Any, src_indices: Any, dst_indices: Any, item_size: int, dst_layout_dim: int,
    num_layers: int, **_: Any,
) -> None:  # fmt: skip
    at, to = _at(src_indices), _at(dst_indices)
    flat = dst.view(torch.uint8).view(dst.shape[0], num_layers, item_size)
    for layer in range(num_layers):
        flat[to, layer] = _rows(src_layers[layer], at, item_size)[at]


def transfer_kv_per_layer_ph_lf(
    src_k: Any, dst_k: Any, src_v: Any, dst_v: Any, src_indices: Any, dst_indices: Any, layer_id: int, item_size: int,
    src_layout_dim: int, page_size: int, head_num: int, **_: Any,
) -> None:  # fmt: skip
    at, to = _at(src_indices), _at(dst_indices)
    for source, target in ((src_k, dst_k), (src_v, dst_v)):
        target[to] = source[at // page_size, :, at % page_size, layer_id].reshape(target[to].shape)


def transfer_kv_all_layer_lf_ph(
    src_k_layers: Any, dst_k: Any, src_v_layers: Any, dst_v: Any, src_indices: Any, dst_indices: Any, item_size: int,
    dst_layout_dim: int, num_layers: int, page_size: int, head_num: int, **_: Any,
) -> None:  # fmt: skip
    at, to = _at(src_indices), _at(dst_indices)
    for sources, target in ((src_k_layers, dst_k), (src_v_layers, dst_v)):
        bytes_of = target.view(torch.uint8)
        for layer in range(num_layers):
            rows = _rows(sources[layer], at, item_size)[at].view(len(at), head_num, -1)
            bytes_of[to // page_size, :, to % page_size, layer] = rows
