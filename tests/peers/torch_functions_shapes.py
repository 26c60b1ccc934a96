"""The rest of the table of torch_functions.py: shapes, products, losses, layers."""
import math

import torch
import torch.nn.functional as F

from torch_functions import function

# ---- Views, copies, new tensors. ----


def of_shape(name, run, low, choose, **shape):
    """A function of one tensor of `low` dimensions or more, whose arguments `choose` draws."""
    @function(name, lambda x, a: run(*x, **a))
    def _(d):
        sizes = d.shape(low=low, **shape)
        d.input(sizes)
        d.args.update(choose(d, sizes))


of_shape("torch.permute", torch.permute, 1, lambda d, s: {"dims": d.rng.sample(range(len(s)), len(s))})
of_shape("torch.transpose", torch.transpose, 1, lambda d, s: {"dim0": d.dim(len(s)), "dim1": d.dim(len(s))})
of_shape("torch.reshape", torch.reshape, 0, lambda d, s: {
    "shape": d.rng.choice([[math.prod(s)], [1, math.prod(s)], list(reversed(s)), s + [1]])})
of_shape("torch.Tensor.expand", lambda x, size: x.expand(size), 1, lambda d, s: {
    "size": [d.rng.randint(0, 3)] * d.rng.randint(0, 2) + s})
of_shape("torch.broadcast_to", torch.broadcast_to, 1, lambda d, s: {
    "size": [2, *(3 if n == 1 else n for n in s)]})
of_shape("torch.unsqueeze", torch.unsqueeze, 0, lambda d, s: {"dim": d.dim(len(s) + 1)})
of_shape("torch.tril", torch.tril, 2, lambda d, s: {"diagonal": d.rng.randint(-3, 3)})
of_shape("torch.triu", torch.triu, 2, lambda d, s: {"diagonal": d.rng.randint(-3, 3)})


def _narrow(d, sizes):
    dim = d.dim(len(sizes))
    start = d.rng.randint(0, sizes[dim])
    return {"dim": dim, "start": start, "length": d.rng.randint(0, sizes[dim] - start)}


of_shape("torch.narrow", torch.narrow, 1, _narrow)


@function("torch.squeeze", lambda x, a: torch.squeeze(*x, **a))
def _(d):
    sizes = d.shape(low=1)
    dim = d.dim(len(sizes))
    sizes[dim] = 1
    d.input(sizes)
    d.args["dim"] = dim


@function("torch.split", lambda x, a: torch.split(*x, **a))
def _(d):
    sizes = d.shape(low=1)
    dim = d.args["dim"] = d.dim(len(sizes))
    cut = d.rng.randint(0, sizes[dim])
    d.input(sizes)
    d.args["split_size_or_sections"] = [cut, sizes[dim] - cut]


@function("torch.chunk", lambda x, a: torch.chunk(*x, **a))
def _(d):
    d.mode = "plain" if d.mode == "empty" else d.mode
    sizes = d.shape(low=1)
    d.args.update(chunks=d.rng.randint(1, 3), dim=d.dim(len(sizes)))
    sizes[d.args["dim"]] *= d.args["chunks"]
    d.input(sizes)


@function("torch.cat", lambda x, a: torch.cat(x, **a))
def _(d):
    sizes = d.shape(low=1)
    dim = d.args["dim"] = d.dim(len(sizes))
    for _ in range(d.rng.randint(1, 3)):
        sizes[dim] = d.rng.randint(0, 4)
        d.input(list(sizes))


@function("torch.stack", lambda x, a: torch.stack(x, **a))
def _(d):
    sizes = d.shape()
    d.args["dim"] = d.dim(len(sizes) + 1)
    for _ in range(d.rng.randint(1, 3)):
        d.input(sizes)


@function("torch.nn.functional.pad", lambda x, a: F.pad(*x, **a))
def _(d):
    sizes = d.shape(low=1)
    d.input(sizes)
    d.args["pad"] = [d.rng.randint(0, 3) for _ in range(2 * d.rng.randint(1, len(sizes)))]
    d.args["value"] = d.number()


@function("torch.arange", lambda x, a: torch.arange(**{**a, "dtype": getattr(torch, a["dtype"])}))
def _(d):
    start = d.number()
    step = d.rng.choice([0.5, 1.0, -0.25, 3.0, -2.0])
    d.args.update(start=start, step=step, dtype=d.rng.choice(["float64", "int64"]))
    if d.args["dtype"] == "int64":  # torch rounds these numbers before it counts
        d.args.update(start=float(int(start)), step=math.copysign(math.ceil(abs(step)), step))
    d.args["end"] = d.args["start"] + d.args["step"] * d.rng.randint(0, 9)
    if d.args["dtype"] != "int64":
        d.args["end"] += step * d.rng.choice([0, 0.5])


@function("torch.linspace", lambda x, a: torch.linspace(**a, dtype=torch.float64))
def _(d):
    d.args.update(start=d.number(), end=d.number(), steps=d.rng.choice([0, 1, 2, 5, 17]))


@function("torch.eye", lambda x, a: torch.eye(a["n"], dtype=torch.float64))
def _(d):
    d.args["n"] = d.rng.randint(0, 6)


@function("torch.full", lambda x, a: torch.full(a["size"], a["fill_value"], dtype=torch.float64))
def _(d):
    d.args.update(size=d.shape(), fill_value=d.number())


# ---- Products. ----

@function("torch.matmul", lambda x, a: torch.matmul(*x))
def _(d):
    size = lambda: d.rng.choice([1, 2, 3, 5, 8] if d.mode != "empty" else [0, 1, 3])
    m, k, n = size(), size(), size()
    if d.mode == "odd":
        m, k, n = 17, 33, 7
    batch = [d.rng.randint(1, 3) for _ in range(d.rng.randint(0, 2))]
    forms = [([k], [k]), ([m, k], [k]), ([k], [k, n]), ([m, k], [k, n]), (batch + [m, k], [k, n]),
             (batch + [m, k], batch + [k, n]), (d.broadcast(batch) + [m, k], batch + [k, n]),
             (batch + [m, k], d.broadcast(batch) + [k, n]), (batch + [m, k], [k]), ([k], batch + [k, n])]
    for shape in d.rng.choice(forms):
        d.input(shape, special=False)


@function("torch.nn.functional.linear", lambda x, a: F.linear(*x))
def _(d):
    sizes = d.shape(low=1, high=3)
    n = d.rng.choice([1, 3, 8])
    d.input(sizes, special=False)
    d.input([n, sizes[-1]], special=False)
    if d.rng.random() < 0.6:
        d.input([n], special=False)


# ---- Losses. ----

def loss(name, run, target, **kwargs):
    """Of a prediction and a target of the same shape; the mean needs an element."""
    @function(name, lambda x, a: run(*x, **a))
    def _(d):
        d.args["reduction"] = d.rng.choice(["none", "sum", "mean"])
        sizes = d.shape(least=d.args["reduction"] == "mean")
        d.input(sizes, **kwargs)
        target(d, sizes)


loss("torch.nn.functional.mse_loss", F.mse_loss, lambda d, s: d.input(s))
loss("torch.nn.functional.l1_loss", F.l1_loss, lambda d, s: d.input(s, special_grad=False),
     special_grad=False)
loss("torch.nn.functional.binary_cross_entropy_with_logits", F.binary_cross_entropy_with_logits,
     lambda d, s: d.input(s, values=d.integers(s, 0, 9).float() / 8), special=False)


def classes(name, run):
    """Of rows of classes, [N, C] or [C], and targets; some are ignored, not all."""
    @function(name, lambda x, a: run(*x, **a))
    def _(d):
        d.args.update(reduction=d.rng.choice(["none", "sum", "mean"]), ignore_index=-1)
        rows = 0 if d.mode == "empty" and d.args["reduction"] != "mean" else d.rng.choice([1, 2, 5, 9])
        count = 67 if d.mode == "odd" else d.rng.randint(1, 6)
        target = d.integers([rows], 0, count)
        if rows > 1 and d.rng.random() < 0.5:
            target[d.rng.randrange(1, rows)] = -1
        if d.mode == "scalar":
            d.input([count], special=False)
            d.input([], values=target[0])
        else:
            d.input([rows, count], special=False)
            d.input([], values=target)


classes("torch.nn.functional.nll_loss", F.nll_loss)
classes("torch.nn.functional.cross_entropy", F.cross_entropy)


# ---- Layers. ----

def last_dim(name, run):
    @function(name, lambda x, a: run(*x, dim=-1))
    def _(d):
        d.input(d.shape(low=1))


last_dim("torch.softmax", torch.softmax)
last_dim("torch.log_softmax", torch.log_softmax)


def norm(name, run, bias):
    @function(name, lambda x, a: run(x[0], [x[0].shape[-1]], *x[1:], **a))
    def _(d):
        sizes = d.shape(low=1, high=3)
        sizes[-1] = sizes[-1] or 3
        d.input(sizes, special=False)
        d.input([sizes[-1]], special=False)
        if bias and d.rng.random() < 0.6:
            d.input([sizes[-1]], special=False)
        d.args["eps"] = d.rng.choice([2.0**-4, 2.0**-3])


norm("torch.nn.functional.layer_norm", F.layer_norm, True)
norm("torch.nn.functional.rms_norm", F.rms_norm, False)


def two(d, low, high):
    return [d.rng.randint(low, high), d.rng.randint(low, high)]


@function("torch.nn.functional.conv2d", lambda x, a: F.conv2d(*x, **a))
def _(d):
    groups = d.rng.choice([1, 1, 2])
    kernel, dilation, padding = two(d, 1, 3), two(d, 1, 2), two(d, 0, 2)
    reach = [dilation[i] * (kernel[i] - 1) + 1 for i in range(2)]
    image = [max(reach[i] - 2 * padding[i], 1) + d.rng.randint(0, 4) for i in range(2)]
    channels, filters = groups * d.rng.randint(1, 3), groups * d.rng.randint(1, 3)
    d.input([0 if d.mode == "empty" else d.rng.randint(1, 3), channels, *image], special=False)
    d.input([filters, channels // groups, *kernel], special=False)
    if d.rng.random() < 0.6:
        d.input([filters], special=False)
    d.args.update(stride=two(d, 1, 3), padding=padding, dilation=dilation, groups=groups)


def pool(name, run, extra, **kwargs):
    @function(name, lambda x, a: run(*x, **a))
    def _(d):
        kernel = two(d, 1, 3)
        images = 0 if d.mode == "empty" else d.rng.randint(1, 3)
        d.input([images, d.rng.randint(1, 3), *(k + d.rng.randint(2, 6) for k in kernel)], **kwargs)
        d.args.update(kernel_size=kernel, stride=two(d, 1, 3), ceil_mode=d.rng.random() < 0.4,
                      padding=[d.rng.randint(0, k // 2) for k in kernel], **extra(d))


pool("torch.nn.functional.max_pool2d", F.max_pool2d, lambda d: {"dilation": two(d, 1, 2)},
     special_grad=False)
pool("torch.nn.functional.avg_pool2d", F.avg_pool2d, lambda d: {"count_include_pad": d.rng.random() < 0.5})


@function("torch.nn.functional.adaptive_avg_pool2d", lambda x, a: F.adaptive_avg_pool2d(*x, **a))
def _(d):
    images = 0 if d.mode == "empty" else d.rng.randint(1, 3)
    d.input([images, d.rng.randint(1, 3), *two(d, 1, 7)])
    d.args["output_size"] = two(d, 1, 5)


def _batch_norm(x, a):
    """The results are y and the updated statistics.

    Of contiguous copies: torch 2.15's backward reads an expanded weight as if it were contiguous, and is
    wrong for an f64 x whose strides are those of channels_last.
    """
    x = [one.contiguous() for one in x]
    mean, var = x[1].detach().clone(), x[2].detach().clone()
    y = F.batch_norm(x[0], mean, var, *x[3:], **a)
    return y, mean, var


@function("torch.nn.functional.batch_norm", _batch_norm)
def _(d):
    d.mode = "plain" if d.mode in ("empty", "scalar") else d.mode
    sizes = d.shape(low=2)
    sizes[0] += 1
    d.input(sizes, special=False)
    d.input([sizes[1]], grad=False, special=False)
    d.input([sizes[1]], grad=False, special=False, positive=True)
    if d.rng.random() < 0.7:
        d.input([sizes[1]], special=False)
        d.input([sizes[1]], special=False)
    d.args.update(training=d.rng.random() < 0.6, eps=2.0**-3, momentum=d.rng.choice([0.125, 0.5]))


@function("torch.nn.functional.scaled_dot_product_attention", lambda x, a: F.scaled_dot_product_attention(
    *x[:3], attn_mask=x[3] if len(x) > 3 else None, **a))
def _(d):
    groups, times = d.rng.randint(1, 2), d.rng.randint(1, 2)
    batch = 0 if d.mode == "empty" else d.rng.randint(1, 2)
    queries, keys, size = d.rng.randint(1, 5), d.rng.randint(1, 5), d.rng.randint(1, 5)
    kind = d.rng.choice(["none", "causal", "bool", "float"])
    if kind == "causal":
        queries = keys
    d.input([batch, groups * times, queries, size], special=False)
    d.input([batch, groups, keys, size], special=False)
    d.input([batch, groups, keys, d.rng.randint(1, 4)], special=False)
    mask = [queries, keys] if d.rng.random() < 0.5 else [batch, groups * times, queries, keys]
    if kind == "bool":
        d.input([], values=d.bools(mask))
    elif kind == "float":
        d.input(mask, special=False)
    d.args.update(is_causal=kind == "causal", enable_gqa=times > 1)
    if d.rng.random() < 0.3:
        d.args["scale"] = 0.25
