#!/usr/bin/env python3
"""Makes tests/models/preference/testdata/dpo.safetensors and dpo_*.safetensors: DPO and its gradients by TRL's formulas.

    python3 tests/peers/make_dpo_golden.py

Needs torch, transformers, peft, numpy and safetensors. The formulas are those of trl.DPOTrainer (losses
"sigmoid", with and without label_smoothing, and "ipo"), written out here: an answer's log-probability is the
sum over its own tokens, prompts and padding are labelled -100, and ipo divides it by the number of tokens.
Rows come in pairs, the chosen answer first; labels [2 P, T] are shifted already. Of each variant, whose options
are in the metadata, a file has "losses" [P], the rewards "chosen" and "rejected" [P], and gradients of the mean
loss.

dpo.safetensors, in f64: of hidden states "x" [2 P, T, C] of a policy and "reference_x" of its reference, and
the head's weight [V, C]; gradient "dx".
dpo_qwen2.safetensors, dpo_gpt2.safetensors, in f32: the policy is the model with the adapter of
tests/testdata/*_peft, the reference that without it; rows are "ids" [2 P, T], and the gradients have the names
of the adapter's file.
"""
import json
import pathlib

import numpy as np
import torch
import torch.nn.functional as F
from make_peft_parity import DATA, adapter_of, base_model
from peft import PeftModel
from safetensors.torch import save_file

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests/models/preference/testdata"
VARIANTS = {"sigmoid": {"loss": "sigmoid", "beta": 0.1, "label_smoothing": 0.0},
            "steep": {"loss": "sigmoid", "beta": 2.5, "label_smoothing": 0.0},
            "smooth": {"loss": "sigmoid", "beta": 0.5, "label_smoothing": 0.2},
            "ipo": {"loss": "ipo", "beta": 0.3, "label_smoothing": 0.0}}


def answers(logits, labels):
    """The sums of the log-probabilities of each row's labels, and how many there are."""
    mask = labels != -100
    picked = torch.gather(logits.log_softmax(-1), 2, labels.clamp(min=0).unsqueeze(2)).squeeze(2)
    return (picked * mask).sum(-1), mask.sum(-1)


def dpo(policy, reference, lengths, loss, beta, label_smoothing):
    chosen, rejected = policy[0::2] - reference[0::2], policy[1::2] - reference[1::2]
    if loss == "ipo":
        margin = chosen / lengths[0::2] - rejected / lengths[1::2]
        losses = (margin - 1 / (2 * beta)) ** 2
    else:
        margin = chosen - rejected
        losses = (-F.logsigmoid(beta * margin) * (1 - label_smoothing)
                  - F.logsigmoid(-beta * margin) * label_smoothing)
    return losses, beta * chosen.detach(), beta * rejected.detach()


def save(name, variants, out):
    OUT.mkdir(exist_ok=True)
    save_file({key: w.contiguous() for key, w in out.items()}, OUT / name, {"variants": json.dumps(variants)})


def of_heads(pairs=3, t=9, c=6, v=17):
    torch.manual_seed(20261126)
    x = torch.randn(2 * pairs, t, c, dtype=torch.float64, requires_grad=True)
    reference_x = torch.randn(2 * pairs, t, c, dtype=torch.float64)
    weight = torch.randn(v, c, dtype=torch.float64)
    labels = torch.randint(0, v, (2 * pairs, t))
    for row in range(2 * pairs):
        labels[row, :2] = -100  # the prompt
        labels[row, t - row % 4:] = -100  # padding
    labels[3, 4] = -100  # between two answers
    out = {"x": x.detach().clone(), "reference_x": reference_x, "weight": weight, "labels": labels.int()}
    for name, options in VARIANTS.items():
        policy, lengths = answers(x @ weight.T, labels)
        reference, _ = answers(reference_x @ weight.T, labels)
        losses, chosen, rejected = dpo(policy, reference, lengths, **options)
        (gradient,) = torch.autograd.grad(losses.mean(), x)
        out |= {f"{name}.losses": losses.detach(), f"{name}.chosen": chosen, f"{name}.rejected": rejected,
                f"{name}.dx": gradient}
    save("dpo.safetensors", VARIANTS, out)


def of_model(family, pairs=2, t=24, prompt=6):
    model = PeftModel.from_pretrained(base_model(DATA / f"{family}_parity"), DATA / f"{family}_peft",
                                      is_trainable=True)
    walk = torch.from_numpy(np.fromfile(DATA / f"{family}_parity/tokens.bin", "<u2").astype(np.int64))
    ids, labels = torch.zeros(2 * pairs, t, dtype=torch.int64), torch.full((2 * pairs, t), -100)
    for row in range(2 * pairs):
        length = t - 3 * row  # the rest is padding
        text = torch.cat([walk[40 * (row // 2):][:prompt], walk[200 + 50 * row:][:length + 1 - prompt]])
        ids[row, :length] = text[:length]
        labels[row, prompt - 1:length] = text[prompt:length + 1]
    out = {"ids": ids.int(), "labels": labels.int()}
    variants = {name: VARIANTS[name] for name in ("steep", "smooth", "ipo")}
    for name, options in variants.items():
        model.zero_grad()
        policy, lengths = answers(model(input_ids=ids).logits, labels)
        with torch.no_grad(), model.disable_adapter():
            reference, _ = answers(model(input_ids=ids).logits, labels)
        losses, chosen, rejected = dpo(policy, reference, lengths, **options)
        losses.mean().backward()
        out |= {f"{name}.losses": losses.detach(), f"{name}.chosen": chosen, f"{name}.rejected": rejected}
        out |= {f"{name}.{key}": w for key, w in adapter_of(model, lambda w: w.grad).items()}
    save(f"dpo_{family}.safetensors", variants, out)


torch.set_num_threads(1)
of_heads()
for tested in ("qwen2", "gpt2"):
    of_model(tested)
