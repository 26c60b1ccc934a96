#!/usr/bin/env python3
"""Makes tests/testdata/cnn_parity: 10 steps of a small convolutional network in PyTorch.

    python3 tests/peers/make_cnn_parity.py

Needs torch and safetensors. It writes the initial state_dict (model.safetensors), two batches that
alternate (data.safetensors), the losses and gradient norms (steps.json), and the state_dict after the
last step with the logits that it gives for the first batch in evaluation (final.safetensors).
"""
import json
import pathlib

import torch
from safetensors.torch import save_file
from torch import nn

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests/testdata/cnn_parity"
SETTINGS = {"steps": 10, "lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}

torch.manual_seed(20261121)
torch.set_num_threads(1)
model = nn.Sequential(
    nn.Conv2d(2, 6, (3, 5), stride=1, padding=(1, 2), bias=False), nn.BatchNorm2d(6), nn.ReLU(),
    nn.MaxPool2d(3, stride=2, padding=1),
    nn.Conv2d(6, 8, 3, padding=2, dilation=2, groups=2), nn.BatchNorm2d(8, eps=1e-3, momentum=None), nn.ReLU(),
    nn.AvgPool2d(2, stride=1, padding=1, count_include_pad=False),
    nn.Conv2d(8, 8, 2, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d((2, 1)), nn.Flatten(),
    nn.Linear(16, 12), nn.BatchNorm1d(12, affine=False), nn.Linear(12, 5))
x = torch.rand(2, 8, 2, 10, 10) * 2 - 0.5
y = torch.randint(0, 5, (2, 8), dtype=torch.int32)

OUT.mkdir(parents=True, exist_ok=True)
save_file(model.state_dict(), OUT / "model.safetensors")
save_file({"x": x, "y": y}, OUT / "data.safetensors")
decay = [p for p in model.parameters() if p.ndim >= 2]
others = [p for p in model.parameters() if p.ndim < 2]
sgd = torch.optim.SGD([{"params": decay, "weight_decay": SETTINGS["weight_decay"]}, {"params": others}],
                      lr=SETTINGS["lr"], momentum=SETTINGS["momentum"], nesterov=True)
steps = []
for step in range(SETTINGS["steps"]):
    loss = nn.functional.cross_entropy(model(x[step % 2]), y[step % 2].long())
    sgd.zero_grad()
    loss.backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    sgd.step()
    steps.append({"loss": loss.item(), "grad_norm": norm.item()})
model.eval()
save_file({**model.state_dict(), "logits": model(x[0]).detach()}, OUT / "final.safetensors")
(OUT / "steps.json").write_text(json.dumps(
    {"peer": f"torch {torch.__version__}", "settings": SETTINGS, "steps": steps}, indent=1) + "\n")
