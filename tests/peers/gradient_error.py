#!/usr/bin/env python3
"""Compares the errors of 16-bit gradients, Lockstep's and PyTorch's, against fp64, parameter by parameter.

    bazel build -c opt //tests:dump_gradients
    python3 tests/peers/gradient_error.py out/latest [bf16|f16]

A GPT-2 without dropout; the weights are rounded to 16 bits first, and all see the same. PyTorch computes once with
16-bit weights and activations, as Lockstep does, and once under autocast with the same weights in fp32, where norms and
the residual stream stay fp32. An error is the norm of the difference over the norm of the fp64 gradient, which must be
PyTorch's fp64 gradient, too. Needs torch and safetensors. Exits with 1 if an error is above 1.1 times that of PyTorch
with 16-bit weights.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

folder = pathlib.Path(sys.argv[1])
dtype = sys.argv[2] if len(sys.argv) > 2 else "bf16"
narrow = {"bf16": torch.bfloat16, "f16": torch.float16}[dtype]
program = pathlib.Path(__file__).resolve().parents[2] / "bazel-bin/tests/dump_gradients"
config = json.loads((folder / "config.json").read_text())
with tempfile.TemporaryDirectory() as temporary:
    path = temporary + "/gradients.safetensors"
    subprocess.run([program, folder, dtype, path], check=True)
    file = load_file(path)
ids, targets = file["ids"].long(), file["targets"].long()
names = [name.removeprefix("weight.") for name in file if name.startswith("weight.")]


def gradients(kind, autocast):
    w = {name: file["weight." + name].to(kind).requires_grad_() for name in names}

    def norm(x, name):
        return F.layer_norm(x, x.shape[-1:], w[name + ".weight"], w.get(name + ".bias"), 1e-5)

    def linear(x, name):
        return F.linear(x, w[name + ".weight"], w.get(name + ".bias"))

    with torch.autocast("cpu", narrow, enabled=autocast):
        x = F.embedding(ids, w["wte.weight"]) + w["wpe.weight"][: ids.shape[1]]
        for layer in range(config["n_layer"]):
            h = f"h.{layer}."
            b, t, c = x.shape
            q, k, v = (z.view(b, t, config["n_head"], -1).transpose(1, 2)
                       for z in linear(norm(x, h + "ln_1"), h + "attn.c_attn").split(c, dim=2))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c)
            x = x + linear(y, h + "attn.c_proj")
            x = x + linear(F.gelu(linear(norm(x, h + "ln_2"), h + "mlp.c_fc"), approximate="tanh"), h + "mlp.c_proj")
        logits = F.linear(norm(x, "ln_f"), w.get("lm_head.weight", w["wte.weight"]))
    logits = logits.double() if kind == torch.float64 else logits.float()
    loss = F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))
    return dict(zip(names, torch.autograd.grad(loss, [w[name] for name in names])))


def error(of, name):
    exact = file["exact." + name]
    return ((of.double() - exact).norm() / exact.norm()).item()


exact, plain, autocast = gradients(torch.float64, False), gradients(narrow, False), gradients(torch.float32, True)
worst = 0
print(f"{'parameter':32}{'Lockstep':>12}{'PyTorch':>12}{'autocast':>12}{'ratio':>8}")
for name in names:
    assert error(exact[name], name) < 1e-9, f"{name}: the fp64 gradients differ"
    ours, theirs = error(file["gradient." + name], name), error(plain[name], name)
    worst = max(worst, ours / theirs)
    print(f"{name:32}{ours:12.2e}{theirs:12.2e}{error(autocast[name], name):12.2e}{ours / theirs:8.2f}")
print(f"largest ratio {worst:.2f}")
sys.exit(not worst <= 1.1)
