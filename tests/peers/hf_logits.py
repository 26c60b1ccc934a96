#!/usr/bin/env python3
"""Compares a saved model with transformers, and an adapter with PEFT: loads the folder and compares the logits.

    bazel build -c opt //tests:dump_logits
    python3 tests/peers/hf_logits.py out/latest

Needs torch and transformers, and for an adapter peft. Exits with 1 if a logit differs by more than 1e-4.
"""
import json
import pathlib
import subprocess
import sys
import warnings

import numpy as np
import torch
from transformers import AutoModelForCausalLM

folder = sys.argv[1]
program = pathlib.Path(__file__).resolve().parents[2] / "bazel-bin/tests/dump_logits"
adapter = pathlib.Path(folder, "adapter_config.json")
base = json.loads(adapter.read_text())["base_model_name_or_path"] if adapter.exists() else folder
model, info = AutoModelForCausalLM.from_pretrained(base, output_loading_info=True)
if adapter.exists():
    from peft import PeftModel
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # such as keys that the file lacks, or that PEFT does not know
        model = PeftModel.from_pretrained(model, folder)
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
