"""The tiny models: what each is for, and how its random weights are drawn.

Weights of a usual initialisation make a random model repeat the last token whatever came before, and then any KV
passes any test.  So matrices are drawn wider than embeddings: what attention reads decides the next token.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}


@dataclasses.dataclass(frozen=True)
class Recipe:
    """One model.  `config` names a class of transformers, `fields` its arguments beyond those that all share."""

    purpose: str
    config: str
    architecture: str
    fields: Mapping[str, Any]
    matrix_std: float = 0.15
    embedding_std: float = 0.05
    seed: int = 0


RECIPES: Mapping[str, Recipe] = {
    "tiny-llama": Recipe(
        "the default: grouped-query attention, 2.6 MB",
        "LlamaConfig",
        "LlamaForCausalLM",
        {
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
        },
    ),
    "tiny-llama-gqa-bench": Recipe(
        "for benchmarks: KV of 16 KiB a token in fp32 is small beside the compute of 37 M parameters",
        "LlamaConfig",
        "LlamaForCausalLM",
        {
            "hidden_size": 512,
            "intermediate_size": 1024,
            "num_hidden_layers": 16,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": 64,
        },
        matrix_std=0.06,
    ),
    "tiny-qwen3": Recipe(
        "normalised queries and keys, head dimension 64",
        "Qwen3Config",
        "Qwen3ForCausalLM",
        {
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 64,
        },
    ),
    "tiny-gemma3": Recipe(
        "five sliding-window layers and a full one: several KV groups",
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        {
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": 6,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "sliding_window": 64,
            "query_pre_attn_scalar": 64,
            "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
        },
        embedding_std=0.004,  # Gemma multiplies embeddings by sqrt(hidden): wider ones drown what attention adds
    ),
    "tiny-mla-dense": Recipe(
        "latent attention; vLLM's CPU kernel exists for 512 + 64 only, and its plain rope is wrong for it: yarn",
        "DeepseekV2Config",
        "DeepseekV2ForCausalLM",
        {
            "hidden_size": 128,
            "intermediate_size": 256,
            "moe_intermediate_size": 64,
            "num_hidden_layers": 3,
            "first_k_dense_replace": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "q_lora_rank": None,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 32,
            "qk_rope_head_dim": 64,
            "v_head_dim": 32,
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": False,
            "routed_scaling_factor": 1.0,
            "topk_method": "greedy",
            "rope_parameters": _YARN,
            "tie_word_embeddings": False,  # vLLM does not tie them for this architecture: all logits would be equal
        },
        matrix_std=0.08,
    ),
    "tiny-granite-hybrid": Recipe(
        "state-space and attention layers: for what must be refused at start",
        "GraniteMoeHybridConfig",
        "GraniteMoeHybridForCausalLM",
        {
            "hidden_size": 128,
            "intermediate_size": 256,
            "shared_intermediate_size": 256,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "num_local_experts": 0,
            "num_experts_per_tok": 0,
            "layer_types": ["mamba", "attention", "mamba", "attention"],
            "mamba_n_heads": 8,
            "mamba_n_groups": 1,
            "mamba_d_state": 32,
            "mamba_d_head": 32,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
            "mamba_chunk_size": 64,
            "position_embedding_type": "rope",
        },
    ),
}
SMALL = tuple(name for name in RECIPES if "bench" not in name)
"""What tests use: all of them together are built in seconds and take 15 MB."""
