#!/usr/bin/env python3
"""Makes tests/testdata/llama_parity and its like: 10 AdamW steps of tiny models in transformers, a
family each.

    python3 tests/peers/make_family_parity.py NAME...      # all: make_family_parity.py all

Needs torch, transformers and numpy. Each folder is what save_pretrained of the model wrote before the
first step (config.json, and model.safetensors, or shards with their index), the tokens (tokens.bin,
uint16), the logits of the first tokens (logits.json), and the losses and gradient norms (steps.json),
with accumulation, clipping, weight decay of matrices, warm-up and cosine decay. The families from
qwen2_parity on also have the gradients of the mean loss of the first 24 tokens (gradients.safetensors).

llama_parity: grouped-query attention, Llama 3's frequencies, an untied head, in shards.
llama_tied_parity: biases, linearly scaled frequencies, a tied head, in one file.
mixtral_parity: grouped-query attention, 4 experts of which a token has 2, without auxiliary loss.
qwen3_parity: norms of queries and keys, heads wider than their part of the model, a tied head.
qwen3_moe_parity: the same untied, with 5 experts in the second layer, whose gates are shares of all.
qwen2_parity: biases of queries, keys and values.
mistral_parity: a window of 5 tokens in all layers.
gemma2_parity: norms around each branch, GEGLU, caps that scores and logits exceed, a window of 5 in the
first layer, scores scaled by 20^-1/2.
gemma3_parity: norms of queries and keys, a window of 5 with wavelengths of its own in two of three layers.
olmo2_parity: norms after each branch, and of all heads together.
smollm3_parity: no positions in the second and fourth layer.
nanochat_parity: ReLU squared, norms without weights, of the embedding too, queries and keys turned the
other way, a cap that logits exceed.
"""
import json
import math
import pathlib
import shutil
import sys

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from transformers import (Gemma2Config, Gemma2ForCausalLM, Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig,
                          LlamaForCausalLM, MistralConfig, MistralForCausalLM, MixtralConfig, MixtralForCausalLM,
                          NanoChatConfig, NanoChatForCausalLM, Olmo2Config, Olmo2ForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config,
                          Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM, SmolLM3Config, SmolLM3ForCausalLM)

ROOT = pathlib.Path(__file__).resolve().parents[2]
V = 67
SETTINGS = {"seq": 16, "batch": 3, "accum": 2, "steps": 10, "lr": 1e-2, "min_lr": 1e-3, "warmup": 3,
            "decay_steps": 10, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "clip": 0.8}
COMMON = {"vocab_size": V, "num_hidden_layers": 2, "max_position_embeddings": 32, "pad_token_id": None,
          "bos_token_id": None, "eos_token_id": None, "attn_implementation": "eager"}
SMALL = {"hidden_size": 24, "intermediate_size": 20, "num_attention_heads": 4, "num_key_value_heads": 2}
MODELS = {
    "llama_parity": (LlamaForCausalLM, LlamaConfig, "30KB", dict(
        hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5,
        tie_word_embeddings=False,
        rope_parameters={"rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "low_freq_factor": 1.0,
                         "high_freq_factor": 4.0, "original_max_position_embeddings": 31})),
    "llama_tied_parity": (LlamaForCausalLM, LlamaConfig, "5GB", dict(
        hidden_size=24, intermediate_size=40, num_attention_heads=3, num_key_value_heads=3, rms_norm_eps=1e-6,
        tie_word_embeddings=True, attention_bias=True, mlp_bias=True,
        rope_parameters={"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0})),
    "mixtral_parity": (MixtralForCausalLM, MixtralConfig, "5GB", dict(
        hidden_size=24, intermediate_size=20, num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5,
        tie_word_embeddings=False, num_local_experts=4, num_experts_per_tok=2, router_aux_loss_coef=0.0,
        sliding_window=None, rope_parameters={"rope_type": "default", "rope_theta": 1000.0})),
    "qwen3_parity": (Qwen3ForCausalLM, Qwen3Config, "5GB", dict(
        hidden_size=24, intermediate_size=20, num_attention_heads=4, num_key_value_heads=2, head_dim=10,
        rms_norm_eps=1e-6, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0})),
    "qwen3_moe_parity": (Qwen3MoeForCausalLM, Qwen3MoeConfig, "5GB", dict(
        hidden_size=24, intermediate_size=20, num_attention_heads=4, num_key_value_heads=2, head_dim=10,
        rms_norm_eps=1e-6, tie_word_embeddings=False, mlp_only_layers=[0], moe_intermediate_size=12, num_experts=5,
        num_experts_per_tok=2, norm_topk_prob=False, router_aux_loss_coef=0.0,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0})),
    "qwen2_parity": (Qwen2ForCausalLM, Qwen2Config, "5GB", dict(
        SMALL, rms_norm_eps=1e-6, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0})),
    "mistral_parity": (MistralForCausalLM, MistralConfig, "5GB", dict(
        SMALL, head_dim=10, rms_norm_eps=1e-5, tie_word_embeddings=False, sliding_window=5,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0})),
    "gemma2_parity": (Gemma2ForCausalLM, Gemma2Config, "5GB", dict(
        SMALL, head_dim=10, rms_norm_eps=1e-6, query_pre_attn_scalar=20, sliding_window=5,
        attn_logit_softcapping=0.5, final_logit_softcapping=0.4,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0})),
    "gemma3_parity": (Gemma3ForCausalLM, Gemma3TextConfig, "5GB", dict(
        SMALL, num_hidden_layers=3, head_dim=10, rms_norm_eps=1e-6, query_pre_attn_scalar=10, sliding_window=5,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        rope_parameters={"full_attention": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 4.0},
                         "sliding_attention": {"rope_type": "default", "rope_theta": 50.0}})),
    "olmo2_parity": (Olmo2ForCausalLM, Olmo2Config, "5GB", dict(
        SMALL, rms_norm_eps=1e-6, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0})),
    "smollm3_parity": (SmolLM3ForCausalLM, SmolLM3Config, "5GB", dict(
        SMALL, num_hidden_layers=4, rms_norm_eps=1e-6, tie_word_embeddings=True, no_rope_layer_interval=2,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0})),
    "nanochat_parity": (NanoChatForCausalLM, NanoChatConfig, "5GB", dict(
        SMALL, rms_norm_eps=1e-6, tie_word_embeddings=False, final_logit_softcapping=0.4,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0})),
}
OLD = ("llama", "mixtral", "qwen3")  # without gradients.safetensors


def lr_at(step):
    s = SETTINGS
    if step < s["warmup"]:
        return s["lr"] * (step + 1) / (s["warmup"] + 1)
    r = min(1.0, (step - s["warmup"]) / (s["decay_steps"] - s["warmup"]))
    return s["min_lr"] + 0.5 * (1 + math.cos(math.pi * r)) * (s["lr"] - s["min_lr"])


def train(model, tokens):
    s = SETTINGS
    weights = [w for w in model.parameters() if w.requires_grad]
    groups = [{"params": [w for w in weights if w.dim() >= 2], "weight_decay": s["weight_decay"]},
              {"params": [w for w in weights if w.dim() < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(s["beta1"], s["beta2"]), eps=s["eps"])
    windows = (len(tokens) - 1) // s["seq"]
    out = []
    for step in range(s["steps"]):
        for group in optimizer.param_groups:
            group["lr"] = lr_at(step)
        total = 0.0
        for micro in range(s["accum"]):
            first = (step * s["accum"] + micro) * s["batch"]
            starts = [((first + i) % windows) * s["seq"] for i in range(s["batch"])]
            x = torch.stack([tokens[i:i + s["seq"]] for i in starts])
            y = torch.stack([tokens[i + 1:i + 1 + s["seq"]] for i in starts])
            logits = model(input_ids=x).logits
            loss = torch.nn.functional.cross_entropy(logits.view(-1, V), y.view(-1)) / s["accum"]
            loss.backward()
            total += loss.item()
        norm = torch.nn.utils.clip_grad_norm_(weights, s["clip"])
        optimizer.step()
        optimizer.zero_grad()
        out.append({"step": step, "loss": round(total, 7), "grad_norm": round(float(norm), 6)})
    return out


def make_folder(name):
    make, make_config, shard, config = MODELS[name]
    rng = np.random.default_rng(20261121)
    model = make(make_config(**COMMON | config)).float()
    with torch.no_grad():
        for key, w in model.named_parameters():
            std = 0.15 if w.dim() >= 2 and ("proj" in key or ".fc" in key) else 0.05
            if key.endswith("gate.weight"):
                std = 1.0  # routers: choices that rounding does not change
            if key.endswith("bias") and not name.startswith(OLD):
                std = 0.3
            # Gemma multiplies by 1 + w.
            mean = 1.0 if "norm" in key and not name.startswith("gemma") else 0.0
            w.copy_(torch.from_numpy(rng.normal(mean, std, w.shape).astype(np.float32)))
    folder = ROOT / "tests/testdata" / name
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder, max_shard_size=shard)
    (folder / "generation_config.json").unlink()
    # A noisy walk over the vocabulary, so that there is something to learn.
    walk = (np.cumsum(rng.integers(1, 4, 1500)) % V).astype("<u2")
    walk.tofile(folder / "tokens.bin")
    tokens = torch.from_numpy(walk.astype(np.int64))
    model.eval()  # dropout is 0 anyway
    with torch.no_grad():
        logits = model(input_ids=tokens[None, :24]).logits[0]
    (folder / "logits.json").write_text(json.dumps([[round(float(v), 6) for v in row] for row in logits]) + "\n")
    if not name.startswith(OLD):
        logits = model(input_ids=tokens[None, :24]).logits[0]
        torch.nn.functional.cross_entropy(logits, tokens[1:25]).backward()
        save_file({key: w.grad.clone() for key, w in model.named_parameters()}, folder / "gradients.safetensors")
        model.zero_grad()
    peer = f"transformers {transformers.__version__}, torch {torch.__version__}"
    (folder / "steps.json").write_text(json.dumps(
        {"peer": peer, "settings": SETTINGS, "steps": train(model, tokens)}, indent=1) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in MODELS if sys.argv[1:] == ["all"] else sys.argv[1:]:
        make_folder(name)
