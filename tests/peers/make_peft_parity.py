#!/usr/bin/env python3
"""Makes tests/testdata/llama_peft and its like: LoRA in PEFT of the tiny models of the families' goldens.

    python3 tests/peers/make_peft_parity.py NAME...      # all: make_peft_parity.py all

Needs torch, transformers, peft and numpy. Each folder is an adapter that PEFT wrote (adapter_config.json,
adapter_model.safetensors) with random A and B, for the model and the tokens of its *_parity folder, and has

    logits.json            of the first 24 tokens, with the adapter
    gradients.safetensors  of their mean loss, under the names of the adapter's file
    steps.json             losses and gradient norms of 10 AdamW steps from there
    trained.safetensors    the adapter after them
    merged_f32.safetensors, merged_bf16.safetensors
                           the matrices that merge_and_unload changes, of the model in f32 and in bf16;
                           the adapter is in f32 in both

llama_peft: all linear layers, some with ranks and alphas of their own; an untied head in modules_to_save.
qwen2_peft: PEFT's own choice of targets (q and v), rank-stabilised scaling.
gpt2_peft: Conv1D layers (fan_in_fan_out), with one adapter for the three parts of c_attn.
"""
import json
import pathlib
import shutil
import sys

import numpy as np
import peft
import torch
import transformers
from make_family_parity import SETTINGS, train
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

DATA = pathlib.Path(__file__).resolve().parents[1] / "testdata"
ADAPTERS = {
    "llama_peft": ("llama_parity", dict(
        r=4, lora_alpha=8, rank_pattern={"q_proj": 2, "layers.1.mlp.down_proj": 6}, alpha_pattern={"k_proj": 3},
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        modules_to_save=["lm_head"])),
    "qwen2_peft": ("qwen2_parity", dict(r=3, lora_alpha=6, use_rslora=True)),
    "gpt2_peft": ("gpt2_parity", dict(r=4, lora_alpha=8, target_modules=["c_attn", "c_proj", "c_fc"],
                                      fan_in_fan_out=True)),
}


def base_model(base, dtype=torch.float32):
    model = AutoModelForCausalLM.from_pretrained(DATA / base, dtype=dtype, attn_implementation="eager")
    return model.eval()  # as in training: there is no dropout


def adapter_of(model, of=lambda w: w):
    state = {name: of(w) for name, w in model.named_parameters() if w.requires_grad}
    return {name.replace(".default", "").replace(".modules_to_save", ""): w.detach().clone()
            for name, w in state.items()}


def make_folder(name):
    base, options = ADAPTERS[name]
    folder = DATA / name
    shutil.rmtree(folder, ignore_errors=True)
    model = get_peft_model(base_model(base), LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.0, **options))
    rng = np.random.default_rng(20261126)
    with torch.no_grad():
        for key, w in model.named_parameters():
            if "lora_" in key:
                w.copy_(torch.from_numpy(rng.normal(0, 0.2, w.shape).astype(np.float32)))
            elif w.requires_grad:
                w.add_(torch.from_numpy(rng.normal(0, 0.02, w.shape).astype(np.float32)))
    model.peft_config["default"].base_model_name_or_path = "tests/testdata/" + base
    model.save_pretrained(folder)
    (folder / "README.md").unlink()
    saved = get_peft_model_state_dict(model)
    assert all(torch.equal(saved[key], w) for key, w in adapter_of(model).items()) and len(saved) == len(adapter_of(model))

    for dtype in (torch.float32, torch.bfloat16):
        plain = base_model(base, dtype)
        before = {key: w.clone() for key, w in plain.state_dict().items()}
        merged = PeftModel.from_pretrained(plain, folder).merge_and_unload().state_dict()
        changed = {key: w.contiguous() for key, w in merged.items() if not torch.equal(w, before[key])}
        save_file(changed, folder / f"merged_{'f32' if dtype == torch.float32 else 'bf16'}.safetensors")

    walk = torch.from_numpy(np.fromfile(DATA / base / "tokens.bin", "<u2").astype(np.int64))
    logits = model(input_ids=walk[None, :24]).logits[0]
    (folder / "logits.json").write_text(json.dumps([[round(float(v), 6) for v in row] for row in logits]) + "\n")
    torch.nn.functional.cross_entropy(logits, walk[1:25]).backward()
    save_file(adapter_of(model, lambda w: w.grad), folder / "gradients.safetensors")
    model.zero_grad()
    peers = f"peft {peft.__version__}, transformers {transformers.__version__}, torch {torch.__version__}"
    (folder / "steps.json").write_text(json.dumps(
        {"peer": peers, "settings": SETTINGS, "steps": train(model, walk)}, indent=1) + "\n")
    save_file(adapter_of(model), folder / "trained.safetensors")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in ADAPTERS if sys.argv[1:] == ["all"] else sys.argv[1:]:
        make_folder(name)
