#!/usr/bin/env python3
"""nanoGPT's recipe in plain PyTorch: validation loss against seconds of training.

tools/time_to_loss.py measures Lockstep against it. The defaults are nanoGPT's options for Tiny Shakespeare by
characters on a CPU (the command line in its README): layer norms and products without biases, learned positions,
GELU, tied embeddings, weights from N(0, 0.02), AdamW (0.9, 0.99) with weight decay 0.1 on matrices, clipping at 1,
100 steps of warm-up, a cosine down to a tenth of the rate, batches at random offsets.

It prints one JSON object per evaluation {"step","seconds","loss"}. `loss` is in nats per token, over all windows of
the validation tokens (nanoGPT draws 20 batches: the same quantity with less noise). `seconds` are of training alone:
neither evaluations nor compilation count.
"""
import argparse
import json
import math
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
p.add_argument("--text", help="by characters: the first nine tenths to train on, the last for validation")
p.add_argument("--train", help="instead: uint16 tokens to train on, raw as nanoGPT's")
p.add_argument("--val", help="with --train: uint16 tokens for validation")
p.add_argument("--vocab", type=int, default=0, help="with --train: the size of the vocabulary")
p.add_argument("--n-layer", type=int, default=4)
p.add_argument("--n-head", type=int, default=4)
p.add_argument("--n-embd", type=int, default=128)
p.add_argument("--seq", type=int, default=64)
p.add_argument("--batch", type=int, default=12)
p.add_argument("--lr", type=float, default=1e-3)
p.add_argument("--warmup", type=int, default=100)
p.add_argument("--steps", type=int, default=2000)
p.add_argument("--seconds", type=float, default=0, help="of training; more than 0: instead of --steps")
p.add_argument("--eval-every", type=int, default=250, help="steps; the last one is always evaluated; 0: not at all")
p.add_argument("--seed", type=int, default=1337)
p.add_argument("--threads", type=int, default=2)
p.add_argument("--compile", action="store_true")
args = p.parse_args()
torch.manual_seed(args.seed)
torch.set_num_threads(args.threads)
B, T, C, H, L = args.batch, args.seq, args.n_embd, args.n_head, args.n_layer

if args.text:
    text = open(args.text, encoding="utf-8").read()
    chars = sorted(set(text))
    number = {c: i for i, c in enumerate(chars)}
    tokens = torch.tensor([number[c] for c in text])
    cut = int(0.9 * len(tokens))
    train, val, V = tokens[:cut], tokens[cut:], len(chars)
else:
    if not (args.train and args.val and args.vocab):
        p.error("give --text, or --train, --val and --vocab")
    train, val = (torch.from_numpy(np.fromfile(path, np.uint16).astype(np.int64)) for path in (args.train, args.val))
    V = args.vocab


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(C))

    def forward(self, x):
        return F.layer_norm(x, (C,), self.weight, None, 1e-5)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = Norm(), Norm()
        self.c_attn, self.attn_proj = nn.Linear(C, 3 * C, bias=False), nn.Linear(C, C, bias=False)
        self.c_fc, self.mlp_proj = nn.Linear(C, 4 * C, bias=False), nn.Linear(4 * C, C, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (z.view(b, t, H, C // H).transpose(1, 2) for z in self.c_attn(self.ln_1(x)).split(C, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn_proj(y.transpose(1, 2).reshape(b, t, C))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x))))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(V, C), nn.Embedding(T, C)
        self.h, self.ln_f = nn.ModuleList(Block() for _ in range(L)), Norm()
        for name, w in self.named_parameters():
            if w.dim() == 2:
                nn.init.normal_(w, 0, 0.02 / math.sqrt(2 * L) if "_proj" in name else 0.02)

    def forward(self, x, y):
        h = self.wte(x) + self.wpe(torch.arange(x.shape[1]))
        for block in self.h:
            h = block(h)
        return F.cross_entropy(F.linear(self.ln_f(h), self.wte.weight).view(-1, V), y.reshape(-1))


def batch():
    at = torch.randint(len(train) - T, (B,))
    return torch.stack([train[i:i + T] for i in at]), torch.stack([train[i + 1:i + T + 1] for i in at])


model = Gpt()
forward = torch.compile(model) if args.compile else model
groups = [{"params": [w for w in model.parameters() if w.dim() > 1], "weight_decay": 0.1},
          {"params": [w for w in model.parameters() if w.dim() < 2], "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.99), fused=True)
windows = (len(val) - 1) // T
val_x, val_y = val[:windows * T].view(windows, T), val[1:windows * T + 1].view(windows, T)


@torch.no_grad()
def evaluate():
    return sum(model(val_x[i:i + 64], val_y[i:i + 64]).item() * len(val_x[i:i + 64])
               for i in range(0, windows, 64)) / windows


def tell(step, seconds):
    print(json.dumps({"step": step, "seconds": round(seconds, 3), "loss": round(evaluate(), 5)}), flush=True)


if args.compile:
    forward(*batch()).backward()
    optimizer.zero_grad()
seconds, step = 0.0, 0
while True:
    # Where seconds are the limit, the schedule follows them.
    done = seconds / args.seconds if args.seconds else step / args.steps
    if done >= 1:
        break
    if args.eval_every and step % args.eval_every == 0:
        tell(step, seconds)
    begin = time.perf_counter()
    if step < args.warmup:
        rate = args.lr * (step + 1) / (args.warmup + 1)
    else:
        first = 0 if args.seconds else args.warmup / args.steps
        rate = args.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * (done - first) / (1 - first))))
    for group in optimizer.param_groups:
        group["lr"] = rate
    forward(*batch()).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    seconds += time.perf_counter() - begin
    step += 1
if args.eval_every:
    tell(step, seconds)
else:
    print(json.dumps({"step": step, "seconds": round(seconds, 3)}))
