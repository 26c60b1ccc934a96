#!/usr/bin/env python3
"""Makes tests/optim/testdata/{sgd,lion,muon}.txt: steps of SGD, Lion and Muon with clipping.

    python3 tests/peers/make_optimizer_goldens.py

Needs torch 2.9 or newer and lion-pytorch. Three parameters: a wide matrix w and a tall one v with weight
decay, a vector b without; gradients that are clipped at some steps and not at others, and a learning
rate that changes every step. A line is "<dtype>.<variant>.<parameter>.<what>.<step>" and its values; 9
(17) significant digits give back every float (double). SGD and Muon are torch.optim's, Lion is
lion-pytorch's. Muon's orthogonalisation rounds to bf16 in PyTorch: its variants "adamw" and "spectral"
(the scale of the learning rate) have the same code without the rounding, "bf16" is PyTorch's own.
"""
import inspect
import pathlib

import torch
from lion_pytorch import Lion
from torch.optim import _muon

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests/optim/testdata"
STEPS, DECAY, MAX_NORM = 6, 0.1, 1.0
SHAPES = {"w": (4, 6), "v": (7, 3), "b": (5,)}

ROUNDED = _muon._zeropower_via_newtonschulz
_source = inspect.getsource(ROUNDED)
assert _source.count("torch.bfloat16") == 1
_scope = dict(vars(_muon))
exec(_source.replace("torch.bfloat16", "grad.dtype"), _scope)
EXACT = _scope["_zeropower_via_newtonschulz"]


def make(kind, variant, p):
    """The optimizers of a variant, and for each parameter what our optimizers call its state."""
    decay = [{"params": [p["w"], p["v"]], "weight_decay": DECAY}, {"params": [p["b"]], "weight_decay": 0.0}]
    if kind == "sgd":
        momentum = 0.0 if variant == "plain" else 0.9
        return [torch.optim.SGD(decay, lr=1.0, momentum=momentum, nesterov=variant == "nesterov")]
    if kind == "lion":
        return [Lion(decay, lr=1.0, betas=(0.9, 0.95), use_triton=False)]
    scale = "original" if variant == "spectral" else "match_rms_adamw"
    _muon._zeropower_via_newtonschulz = ROUNDED if variant == "bf16" else EXACT
    return [torch.optim.Muon([p["w"], p["v"]], lr=1.0, weight_decay=DECAY, adjust_lr_fn=scale),
            torch.optim.AdamW([p["b"]], lr=1.0, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)]


def lines(kind, variant, dtype):
    digits, tag = (9, "f32") if dtype == torch.float32 else (17, "f64")
    generator = torch.Generator().manual_seed(20261121)

    def line(name, values):
        numbers = " ".join(f"{v:.{digits}g}" for v in torch.as_tensor(values).flatten().tolist())
        return f"{tag}.{variant}.{name} {numbers}"

    def normal(shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    p = {name: torch.nn.Parameter(normal(shape)) for name, shape in SHAPES.items()}
    for name, value in p.items():
        yield line(f"{name}.init", value.detach())
    optimizers = make(kind, variant, p)
    for step in range(STEPS):
        # f32 learning rates, as Lockstep hands them to its kernels.
        lr = torch.tensor(0.1 * (step + 1) / (step + 4), dtype=torch.float32).item()
        scale = 10.0 ** (step % 3 - 1.5)
        yield line(f"lr.{step}", torch.tensor([lr], dtype=torch.float64))
        for name, value in p.items():
            value.grad = normal(SHAPES[name]) * scale
            yield line(f"{name}.grad.{step}", value.grad)
        torch.nn.utils.clip_grad_norm_(list(p.values()), MAX_NORM)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()
        for name, value in p.items():
            yield line(f"{name}.value.{step}", value.detach())
            for optimizer in optimizers:
                for what, tensor in optimizer.state.get(value, {}).items():
                    if tensor is not None and what != "step":
                        yield line(f"{name}.{what}.{step}", tensor)


for kind, variants in {"sgd": ["plain", "momentum", "nesterov"], "lion": ["lion"],
                       "muon": ["adamw", "spectral", "bf16"]}.items():
    text = []
    for variant in variants:
        for dtype in (torch.float32, torch.float64):
            if variant != "bf16" or dtype == torch.float32:
                text += lines(kind, variant, dtype)
    (OUT / f"{kind}.txt").write_text("\n".join(text) + "\n")
