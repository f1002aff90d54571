"""Which of the hub's counters engines show among their own metrics, and under which names: the same in every engine."""

from __future__ import annotations

EXPORTED: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "prompt_tokens": ("kvhub:prompt_tokens_total", "Prompt tokens of requests that kvhub saw", ()),
    "hit_tokens": (
        "kvhub:hit_tokens_total",
        "Prompt tokens not computed, once each, by where they came from",
        ("source",),
    ),
    "generated_hit_tokens": ("kvhub:generated_hit_tokens_total", "Hit tokens that a decode had generated", ("source",)),
    "streamed_chunks": ("kvhub:streamed_chunks_total", "Chunks that peers pulled before their prompt was done", ()),
    "bytes": ("kvhub:bytes_total", "Payload bytes moved by members", ("member", "direction")),
    "faults": ("kvhub:faults_total", "Chunks that a member failed to move, by reason", ("member", "reason")),
    "declined": ("kvhub:declined_total", "Chunks not asked for, by the member that is slower", ("member", "reason")),
    "demotions": ("kvhub:demotions_total", "Chunks written back before the host tier lost them", ("member",)),
    "demotions_lost": ("kvhub:demotions_lost_total", "Chunks lost before they were written back", ("member",)),
    "member_changes": (
        "kvhub:member_changes_total",
        "Members kept out (down) and let in again (up)",
        ("member", "state"),
    ),
}
"""Counter of the hub -> (metric, help, labels); the labels are filled from member and reason, in that order."""
