#!/usr/bin/env python3
"""Makes tests/testdata/qlora: LoRA in PEFT beside weights in 4 bits, as bitsandbytes has them.

    python3 tests/peers/make_qlora_parity.py

Needs torch, transformers, peft, numpy and bitsandbytes 0.50 or newer. The models are those of
llama_parity and qwen2_parity, and the adapters those of llama_peft and qwen2_peft, which PEFT loads.
Each matrix of the layers is quantised as in make_nf4_goldens.py and dequantised by bitsandbytes; PEFT
then trains in f32 beside what comes out, since bitsandbytes' own layer for the CPU is wrong for rows
that are shorter than a block. For each model and base, nf4 (double quantised) and nf4_single:

    MODEL_BASE_gradients.safetensors  of the mean loss of the first 24 tokens, as PEFT names them
    MODEL_BASE_steps.json             losses and gradient norms of 10 AdamW steps from there
    MODEL_BASE_trained.safetensors    the adapter after them
"""
import json

import bitsandbytes
import numpy as np
import peft
import torch
import transformers
from bitsandbytes import functional as bnb
from make_family_parity import SETTINGS, train
from make_nf4_goldens import quantize
from make_peft_parity import DATA, adapter_of, base_model
from peft import PeftModel
from safetensors.torch import save_file

OUT = DATA / "qlora"


def dequantized(weight, nested):
    # As one row: bitsandbytes 0.50 dequantises shorter ones wrongly on the CPU.
    packed, state = quantize(weight.reshape(1, -1), nested)
    return bnb.dequantize_4bit(packed, state).reshape(weight.shape)


def make(family, nested):
    base = DATA / f"{family}_parity"
    model = base_model(base)
    with torch.no_grad():
        for name, layer in model.model.layers.named_modules():
            if isinstance(layer, torch.nn.Linear):
                layer.weight.copy_(dequantized(layer.weight, nested))
    model = PeftModel.from_pretrained(model, DATA / f"{family}_peft", is_trainable=True).eval()
    walk = torch.from_numpy(np.fromfile(base / "tokens.bin", "<u2").astype(np.int64))
    start = OUT / f"{family}_{'nf4' if nested else 'nf4_single'}"
    logits = model(input_ids=walk[None, :24]).logits[0]
    torch.nn.functional.cross_entropy(logits, walk[1:25]).backward()
    save_file(adapter_of(model, lambda w: w.grad), f"{start}_gradients.safetensors")
    model.zero_grad()
    peers = ", ".join(f"{p.__name__} {p.__version__}" for p in (bitsandbytes, peft, transformers, torch))
    text = json.dumps({"peer": peers, "settings": SETTINGS, "steps": train(model, walk)}, indent=1)
    open(f"{start}_steps.json", "w").write(text + "\n")
    save_file(adapter_of(model), f"{start}_trained.safetensors")


if __name__ == "__main__":
    torch.set_num_threads(1)
    OUT.mkdir(exist_ok=True)
    for family in ("llama", "qwen2"):
        for nested in (True, False):
            make(family, nested)
