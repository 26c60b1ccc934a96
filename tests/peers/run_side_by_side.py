"""Runs PyTorch's half of models/examples/pytorch.md, block by block. Needs PyTorch and safetensors.

  python3 tests/peers/run_side_by_side.py
"""
import math
import os
import pathlib
import re
import tempfile

import safetensors.torch
import torch
import torch.distributed.fsdp
import torch.utils.checkpoint
import torch.nn.functional as F
from torch import nn

PAGE = pathlib.Path(__file__).parents[2] / "models/examples/pytorch.md"


def mlp():
    return nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))


def names():
    """What blocks use that is not in them; `x` and `y` are set by title."""
    a = torch.tensor([[1., 2., 3.], [4., 5., 6.]])
    model = mlp()
    return dict(
        torch=torch, nn=nn, F=F, safetensors=safetensors, a=a, b=a + 6, v=torch.arange(3.),
        many=torch.randn(5, 2, 3), weight=a, bias=torch.randn(2), lr=0.1, logits=a,
        labels=torch.tensor([1, 2]), target=a + 1, bits=torch.ones(2, 3), model=model, other=mlp(),
        large=mlp(), block=mlp(), adamw=torch.optim.AdamW(model.parameters()), losses=[], norms=[],
        math=math, train_epoch=lambda: None, evaluate=lambda: 1.0, batches=0,
        step=1, mean=a, folder=tempfile.mkdtemp(), count_call=lambda: None, x=a.clone(), y=a)


def set_up(title, env):
    two = torch.rand(64, 2)
    if title == "Gradients":
        env["y"] = torch.tensor([1., 0.])
    if title == "Without gradients":
        env["w"] = torch.ones(3, requires_grad=True)
        env["w"].square().sum().backward()
    if title in ("Hooks", "A training loop", "Evaluation", "Batches of a data set", "Mixed precision",
                 "Recomputation of activations"):
        env["x"], env["y"] = two, two.square().sum(1, keepdim=True)
    if title in ("Parameters", "Optimizers, parameter groups, schedules"):
        env["model"].body, env["model"].head = env["model"][0], env["model"][2]
    if title == "Attention and masks":
        q, k, v = (torch.randn(2, 4, 5, 8) for _ in range(3))
        env.update(q=q, k=k, v=v, x=torch.randn(2, 5, 32), memory=torch.randn(2, 7, 32))
    if title.startswith("Several processes"):
        os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")


blocks = re.findall(r"^## (.*)\n(?:(?!^## )[\s\S])*?```python\n([\s\S]*?)```", PAGE.read_text(), re.M)
failed = 0
for title, block in blocks:
    env = names()
    set_up(title, env)
    try:
        exec(block, env)
        print("ok    ", title)
    except Exception as error:
        failed += 1
        print("FAILED", title, repr(error))
print(len(blocks), "blocks,", failed, "failed")
raise SystemExit(failed > 0)
