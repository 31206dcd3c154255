"""A model's architecture from its Hugging Face config.json, as one card sees it under tensor and expert parallelism."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atrex.errors import UserError

# What a dimension is called in the configs of different models, best first.
_NAMES: dict[str, tuple[str, ...]] = {
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "intermediate_size": ("intermediate_size", "ffn_hidden_size", "n_inner"),
    "moe_intermediate_size": ("moe_intermediate_size", "expert_intermediate_size", "intermediate_size"),
    "num_heads": ("num_attention_heads", "n_head", "num_heads"),
    "num_kv_heads": ("num_key_value_heads", "num_kv_heads", "multi_query_group_num", "num_attention_heads"),
    "head_dim": ("head_dim", "v_head_dim"),
    "num_experts": ("num_experts", "num_local_experts", "n_routed_experts"),
    "top_k": ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "experts_per_token"),
    "vocab_size": ("vocab_size",),
    "eps": ("rms_norm_eps", "layer_norm_eps", "layernorm_epsilon", "norm_eps"),
    "kv_lora_rank": ("kv_lora_rank",),
    "qk_rope_head_dim": ("qk_rope_head_dim",),
    "linear_k_heads": ("linear_num_key_heads",),
    "linear_v_heads": ("linear_num_value_heads",),
    "linear_k_dim": ("linear_key_head_dim",),
    "linear_v_dim": ("linear_value_head_dim",),
    "conv_width": ("linear_conv_kernel_dim", "conv_kernel"),
    "routed_scaling_factor": ("routed_scaling_factor",),
}
# Which of them tensor parallelism divides; a card keeps at least one key head.
_BY_TENSOR = ("intermediate_size", "num_heads", "num_kv_heads", "linear_k_heads", "linear_v_heads")


@dataclass(frozen=True)
class ModelConfig:
    """`values`: dimension -> what one card holds of it, keys as in `_NAMES` and `rotary_dim`, `mrope_section`,
    `group_n`, `group_k`, `quantization`. `names`: words that identify the model, which no redacted suite may hold."""

    values: Mapping[str, Any]
    names: tuple[str, ...] = ()

    def get(self, name: str) -> Any:
        return self.values.get(name)


def read_model_config(path: Path, tensor_parallel: int = 1, expert_parallel: int = 1) -> ModelConfig:
    """Read a config.json. Raises UserError, naming file and field, if it is unreadable or does not divide.

    Of models with several parts the language model counts (`text_config`, `llm_config`, `language_config`).
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}), expected a model's config.json") from None
    except ValueError as error:
        raise UserError(f"{path}: not JSON: {error}") from None
    if not isinstance(raw, dict):
        raise UserError(f"{path}: expected a JSON object, a model's config.json")
    inner = next((raw[k] for k in ("text_config", "llm_config", "language_config") if isinstance(raw.get(k), dict)), {})
    flat = {**raw, **inner}
    values: dict[str, Any] = {}
    for name, keys in _NAMES.items():
        found = next((flat[k] for k in keys if isinstance(flat.get(k), int | float) and flat[k]), None)
        if found is not None:
            values[name] = found
    if "head_dim" not in values and {"hidden_size", "num_heads"} <= values.keys():
        values["head_dim"] = values["hidden_size"] // values["num_heads"]
    if "num_experts" not in values:
        values.pop("moe_intermediate_size", None)
    _rotary(flat, values)
    _quantization(flat, values)
    _per_card(path, values, tensor_parallel, expert_parallel)
    return ModelConfig(values, _identity(raw, inner))


def _rotary(flat: Mapping[str, Any], values: dict[str, Any]) -> None:
    factor = flat.get("partial_rotary_factor", 1.0)
    if "head_dim" in values and isinstance(factor, int | float):
        values["rotary_dim"] = int(values["head_dim"] * factor)
    scaling = flat.get("rope_scaling") or flat.get("rope_parameters")
    if isinstance(scaling, dict) and isinstance(scaling.get("mrope_section"), list):
        values["mrope_section"] = scaling["mrope_section"]
        values["mrope_interleaved"] = bool(scaling.get("mrope_interleaved", False))


def _quantization(flat: Mapping[str, Any], values: dict[str, Any]) -> None:
    about = flat.get("quantization_config")
    if not isinstance(about, dict):
        return
    block = about.get("weight_block_size")
    if isinstance(block, list) and len(block) == 2:
        values["group_n"], values["group_k"] = block
    if about.get("quant_method") == "fp8":
        values["quantization"] = "fp8_block" if block else "fp8"


def _per_card(path: Path, values: dict[str, Any], tensor: int, expert: int) -> None:
    divided = dict.fromkeys(_BY_TENSOR, tensor)
    divided["num_experts"] = expert
    # Cards that share the experts hold each of theirs whole; the rest of the tensor-parallel group divides them.
    divided["moe_intermediate_size"] = max(1, tensor // expert)
    for name, cards in divided.items():
        if name not in values or cards == 1:
            continue
        if name == "num_kv_heads" and values[name] < cards:
            values[name] = 1
            continue
        if values[name] % cards:
            raise UserError(f"{path}: {_NAMES[name][0]}: {values[name]} does not divide by {cards} cards")
        values[name] //= cards


def _identity(raw: Mapping[str, Any], inner: Mapping[str, Any]) -> tuple[str, ...]:
    found = []
    for part in (raw, inner):
        for key in ("_name_or_path", "name_or_path", "model_type"):
            if isinstance(part.get(key), str) and part[key]:
                found.append(part[key])
        if isinstance(part.get("architectures"), list):
            found += [a for a in part["architectures"] if isinstance(a, str)]
    return tuple(dict.fromkeys(found))
