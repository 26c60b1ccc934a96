#!/usr/bin/env python3
"""Makes tests/testdata/gpt2_parity: 20 AdamW steps of a tiny GPT-2 in PyTorch.

    python3 tests/peers/make_gpt2_parity.py

Needs torch, numpy and safetensors. It writes the initial weights (model.safetensors, config.json), the
tokens (tokens.bin, uint16) and what tools/torch_gpt2.py printed for them (steps.json), with
accumulation, clipping, weight decay, warm-up and cosine decay.
"""
import json
import pathlib
import subprocess
import sys

import numpy as np
from safetensors.numpy import save_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = ROOT / "tests/testdata/gpt2_parity"
V, P, L, H, C = 67, 32, 2, 2, 24
SETTINGS = {"seq": 16, "batch": 3, "accum": 2, "steps": 20, "lr": 1e-2, "min_lr": 1e-3, "warmup": 5,
            "decay_steps": 20, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "clip": 0.8}

rng = np.random.default_rng(20261121)


def normal(*shape, std=0.05):
    return rng.normal(0, std, shape).astype(np.float32)


weights = {"wte.weight": normal(V, C), "wpe.weight": normal(P, C)}
for i in range(L):
    h = f"h.{i}."
    for ln in ("ln_1", "ln_2"):
        weights[h + ln + ".weight"] = 1 + normal(C)
        weights[h + ln + ".bias"] = normal(C)
    for name, (rows, cols) in {"attn.c_attn": (C, 3 * C), "attn.c_proj": (C, C),
                               "mlp.c_fc": (C, 4 * C), "mlp.c_proj": (4 * C, C)}.items():
        weights[h + name + ".weight"] = normal(rows, cols, std=0.15)
        weights[h + name + ".bias"] = normal(cols)
weights["ln_f.weight"] = 1 + normal(C)
weights["ln_f.bias"] = normal(C)

OUT.mkdir(parents=True, exist_ok=True)
save_file(weights, OUT / "model.safetensors", metadata={"format": "pt"})
(OUT / "config.json").write_text(json.dumps(
    {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": V, "n_positions": P,
     "n_embd": C, "n_layer": L, "n_head": H, "activation_function": "gelu_new",
     "layer_norm_epsilon": 1e-5, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}, indent=1) + "\n")
# A noisy walk over the vocabulary, so that there is something to learn.
tokens = (np.cumsum(rng.integers(1, 4, 1500)) % V).astype("<u2")
tokens.tofile(OUT / "tokens.bin")

command = [sys.executable, str(ROOT / "tools/torch_gpt2.py"), "--n-layer", L, "--n-head", H, "--n-embd", C,
           "--vocab", V, "--max-seq", P, "--init", OUT / "model.safetensors", "--tokens", OUT / "tokens.bin",
           "--threads", 1]
for key, value in SETTINGS.items():
    command += ["--" + key.replace("_", "-"), value]
printed = subprocess.run([str(c) for c in command], check=True, capture_output=True, text=True).stdout
lines = [json.loads(line) for line in printed.splitlines()]
steps = [{k: s[k] for k in ("step", "loss", "grad_norm")} for s in lines if "step" in s]
(OUT / "steps.json").write_text(json.dumps(
    {"peer": lines[-1]["peer"], "settings": SETTINGS, "steps": steps}, indent=1) + "\n")
