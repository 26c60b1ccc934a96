#!/usr/bin/env python3
"""Computes with transformers what a step of a Lockstep run computed, under the same names.

    train_gpt RUN/config.toml --checkpoint.resume=none --log.ops=1:modules --out_dir=again
    tools/torch_dump.py again/ops-1.rank-0.safetensors RUN/checkpoints/step-00000000 torch.safetensors
    blame again/ops-1.rank-0.safetensors torch.safetensors

The first file has the tokens, weights, activations and gradients of the step, of one process without
dropout. The folder is a checkpoint of the same model, whose configuration is read; the weights are the
file's. Needs torch, transformers and safetensors.
"""

import sys

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoConfig, GPT2LMHeadModel

# Matrices that transformers' Conv1D keeps as [in, out].
CONV1D = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")


def transposed(name, tensor):
    """Between Lockstep's layout of a weight and transformers'."""
    return tensor.t().contiguous() if name.endswith(CONV1D) else tensor


def load(file, names, folder):
    """The model, with the weights of the file."""
    config = AutoConfig.from_pretrained(folder, attn_implementation="eager", resid_pdrop=0.0, embd_pdrop=0.0,
                                        attn_pdrop=0.0)
    model = GPT2LMHeadModel(config).train()
    parameters = dict(model.transformer.named_parameters()) | {"lm_head.weight": model.lm_head.weight}
    with torch.no_grad():
        for name in [n for n in names if n.startswith("weights.")]:
            own = name.removeprefix("weights.")
            parameters[own].copy_(transposed(own, file.get_tensor(name)))
    return model, parameters


def keep_activations(model, kept, micro_batch):
    """Hooks by which the modules of the residual stream leave what they give."""

    def keep(path):
        def hook(_module, _inputs, output):
            value = output[0] if isinstance(output, tuple) else output
            kept[f"activations.{micro_batch[0]}.{path}"] = value.detach().contiguous().clone()

        return hook

    for i, block in enumerate(model.transformer.h):
        block.attn.register_forward_hook(keep(f"h.{i}.attn"))
        block.mlp.register_forward_hook(keep(f"h.{i}.mlp"))
    model.transformer.ln_f.register_forward_hook(keep("ln_f"))


def main(path, folder, out):
    with safe_open(path, "pt") as file:
        names = list(file.keys())
        model, parameters = load(file, names, folder)
        batches = sorted(int(n.split(".")[1]) for n in names if n.startswith("data.") and n.endswith(".inputs"))
        targets = {m: file.get_tensor(f"data.{m}.targets").long() for m in batches}
        divisor = sum(int((t >= 0).sum()) for t in targets.values())
        kept, micro_batch = {}, [0]
        keep_activations(model, kept, micro_batch)
        for m in batches:
            micro_batch[0] = m
            logits = model(file.get_tensor(f"data.{m}.inputs").long()).logits
            loss = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1).float(), targets[m].flatten(), ignore_index=-1, reduction="sum")
            (loss / divisor).backward()
    for name, p in parameters.items():
        if p.grad is not None:
            kept[f"gradients.{name}"] = transposed(name, p.grad).clone()  # tied weights share theirs
    save_file(kept, out)
    print(f"{out}: {len(kept)} tensors")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
