#!/usr/bin/env python3
"""Makes tests/models/testdata/dpo.safetensors: losses of DPO and their gradients, by TRL's formulas.

    python3 tests/peers/make_dpo_golden.py

Needs torch and safetensors. The formulas are those of trl.DPOTrainer (losses "sigmoid", with and without
label_smoothing, and "ipo"), written out here, in f64: an answer's log-probability is the sum over its own
tokens, prompts and padding are labelled -100, and ipo divides it by the number of tokens. Rows come in pairs,
the chosen answer first. Inputs: the hidden states "x" [2 P, T, C] of the policy and "reference_x" of its
reference, the head's weight [V, C], labels [2 P, T] (already shifted). Of each variant: "losses" [P], the rewards
"chosen" and "rejected" [P], and the gradient "dx" of the mean loss; its options are in the metadata.
"""
import json
import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests/models/testdata/dpo.safetensors"
PAIRS, T, C, V = 3, 9, 6, 17
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


def main():
    torch.manual_seed(20261126)
    x = torch.randn(2 * PAIRS, T, C, dtype=torch.float64, requires_grad=True)
    reference_x = torch.randn(2 * PAIRS, T, C, dtype=torch.float64)
    weight = torch.randn(V, C, dtype=torch.float64)
    labels = torch.randint(0, V, (2 * PAIRS, T))
    for row in range(2 * PAIRS):
        labels[row, :2] = -100  # the prompt
        labels[row, T - row % 4:] = -100  # padding
    labels[3, 4] = -100  # between two answers
    out = {"x": x.detach().clone(), "reference_x": reference_x, "weight": weight,
           "labels": labels.to(torch.int32)}
    for name, options in VARIANTS.items():
        policy, lengths = answers(x @ weight.T, labels)
        reference, _ = answers(reference_x @ weight.T, labels)
        losses, chosen, rejected = dpo(policy, reference, lengths, **options)
        (gradient,) = torch.autograd.grad(losses.mean(), x)
        out |= {f"{name}.losses": losses.detach(), f"{name}.chosen": chosen, f"{name}.rejected": rejected,
                f"{name}.dx": gradient}
    save_file(out, OUT, {"variants": json.dumps(VARIANTS)})


main()
