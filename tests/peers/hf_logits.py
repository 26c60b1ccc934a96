#!/usr/bin/env python3
"""Compares a saved model with transformers: loads the folder and compares the logits.

    bazel build -c opt //tests:dump_logits
    python3 tests/peers/hf_logits.py out/latest

Needs torch and transformers. Exits with 1 if a logit differs by more than 1e-4.
"""
import pathlib
import subprocess
import sys

import numpy as np
import torch
from transformers import AutoModelForCausalLM

folder = sys.argv[1]
program = pathlib.Path(__file__).resolve().parents[2] / "bazel-bin/tests/dump_logits"
model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
model.eval()
bad = {k: v for k, v in info.items() if v}
print(type(model).__name__, sum(p.numel() for p in model.parameters()), "parameters; loading:", bad or "clean")
length = min(64, model.config.max_position_embeddings)
ids = np.random.default_rng(7).integers(0, model.config.vocab_size, length)
ours = np.array([[float(x) for x in line.split()] for line in subprocess.run(
    [program, folder, *map(str, ids)], check=True, capture_output=True, text=True).stdout.splitlines()])
with torch.no_grad():
    theirs = model(torch.tensor(ids)[None]).logits[0].double().numpy()
error = np.abs(ours - theirs).max()
print(f"largest difference of {ours.size} logits (up to {np.abs(theirs).max():.3f}): {error:.2e}")
sys.exit(bool(bad) or not error <= 1e-4)
