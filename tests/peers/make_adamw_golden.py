#!/usr/bin/env python3
"""Makes tests/optim/testdata/adamw.txt: steps of torch.optim.AdamW with clipping, in f32 and f64.

    python3 tests/peers/make_adamw_golden.py

Needs torch. Two parameters, with and without weight decay, gradients that are clipped at some steps
and not at others, and a learning rate that changes every step. A line is a name and its values; 9 (17)
significant digits give back every float (double).
"""
import pathlib

import torch

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests/optim/testdata/adamw.txt"
STEPS, BETAS, EPS, DECAY, MAX_NORM = 12, (0.9, 0.95), 1e-8, 0.1, 1.0


def lines(dtype):
    digits, tag = (9, "f32") if dtype == torch.float32 else (17, "f64")
    generator = torch.Generator().manual_seed(20261121)

    def line(name, values):
        numbers = " ".join(f"{v:.{digits}g}" for v in torch.as_tensor(values).flatten().tolist())
        return f"{tag}.{name} {numbers}"

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    w, b = torch.nn.Parameter(normal(4, 5)), torch.nn.Parameter(normal(6))
    yield line("w.init", w.detach())
    yield line("b.init", b.detach())
    adamw = torch.optim.AdamW([{"params": [w], "weight_decay": DECAY}, {"params": [b], "weight_decay": 0.0}],
                              lr=1.0, betas=BETAS, eps=EPS)
    for step in range(STEPS):
        # f32 learning rates, as Lockstep hands them to its kernels.
        lr = torch.tensor(0.03 * (step + 1) / (step + 4), dtype=torch.float32).item()
        for group in adamw.param_groups:
            group["lr"] = lr
        scale = 10.0 ** (step % 3 - 1.5)
        w.grad, b.grad = normal(4, 5) * scale, normal(6) * scale
        yield line(f"lr.{step}", torch.tensor([lr], dtype=torch.float64))
        yield line(f"w.grad.{step}", w.grad)
        yield line(f"b.grad.{step}", b.grad)
        yield line(f"norm.{step}", torch.nn.utils.clip_grad_norm_([w, b], MAX_NORM))
        adamw.step()
        for name, p in (("w", w), ("b", b)):
            state = adamw.state[p]
            yield line(f"{name}.value.{step}", p.detach())
            yield line(f"{name}.exp_avg.{step}", state["exp_avg"])
            yield line(f"{name}.exp_avg_sq.{step}", state["exp_avg_sq"])


OUT.parent.mkdir(parents=True, exist_ok=True)
OUT.write_text("\n".join([*lines(torch.float32), *lines(torch.float64)]) + "\n")
