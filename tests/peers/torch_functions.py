"""What make_torch_functions.py compares: torch's functions, and how their inputs are drawn.

A case is a function, its arguments, and inputs that are views of base tensors. The names of functions and
arguments are torch's; tests/kernels/torch_functions.cc says what they are in Lockstep.
"""
import math

import torch
import torch.nn.functional as F

FUNCTIONS = {}  # name -> (draw(Draw), run(inputs, args)), which returns a tensor or several
# Those whose every result is as exact as its own size asks for: nothing cancels.
EXACT = set()
MODES = ["plain", "view", "special", "empty", "odd", "view", "ties", "scalar"]


class Draw:
    """A case that is being drawn. All numbers are exact in f32."""

    def __init__(self, rng, mode):
        self.rng, self.mode = rng, mode
        self.bases, self.inputs, self.args = [], [], {}

    def shape(self, low=0, high=4, least=0):
        """Sizes of `low` to `high` dimensions, none smaller than `least`."""
        if self.mode == "scalar" and low == 0:
            return []
        ndim = self.rng.randint(max(low, 1), high)
        sizes = [self.rng.choice([1, 2, 3, 4, 5]) for _ in range(ndim)]
        if self.mode == "odd":
            sizes = sizes[:2] if low < 3 else sizes
            sizes[self.rng.randrange(len(sizes))] = self.rng.choice([7, 17, 33, 67])
        if self.mode == "empty" and least == 0:
            sizes[self.rng.randrange(ndim)] = 0
        return sizes

    def dim(self, ndim):
        return self.rng.randrange(-ndim, ndim)

    def number(self):
        return self.rng.randint(-24, 24) / 8

    def values(self, shape, positive=False, special=True, ties=True):
        """Normal numbers; of mode "special" with infinities and NaNs, of mode "ties" small integers."""
        count = math.prod(shape)
        x = [round(self.rng.gauss(0, 1.5) * 2**20) / 2**20 for _ in range(count)]
        if not positive:
            x = [v / 4096 if self.rng.random() < 0.1 else v for v in x]
        if self.mode == "ties" and ties:
            x = [float(self.rng.randint(-2, 2)) for _ in x]
        if positive:
            x = [abs(v) + 0.125 for v in x]
        if self.mode == "special" and special:
            for i in range(count):
                if self.rng.random() < 0.3:
                    x[i] = self.rng.choice([math.inf, -math.inf, -0.0, 0.0, 0.5, 1.0, math.nan])
        return torch.tensor(x, dtype=torch.float32).reshape(shape)

    def input(self, shape, grad=True, values=None, special_grad=True, repeats=True, **kwargs):
        """Adds an input of this shape: a base tensor, and the views that lead to it.

        special_grad: whether gradients at infinities and NaNs are compared. repeats: whether elements
        may be repeated by a view.
        """
        grad = grad and (special_grad or self.mode != "special")
        base, views = list(shape), []
        if self.mode == "view" and values is None:
            for _ in range(self.rng.randint(1, 2)):
                kind = self.rng.choice(["transpose", "slice", "permute", "expand"])
                if kind == "transpose" and len(base) > 1:
                    a, b = self.rng.sample(range(len(base)), 2)
                    base[a], base[b] = base[b], base[a]
                    views.insert(0, [kind, a, b])
                elif kind == "permute" and len(base) > 1:
                    order = self.rng.sample(range(len(base)), len(base))
                    views.insert(0, [kind, *order])
                    base = [base[order.index(d)] for d in range(len(base))]
                elif kind == "slice" and base:
                    d, before, after = self.rng.randrange(len(base)), self.rng.randint(0, 2), self.rng.randint(0, 2)
                    views.insert(0, [kind, d, before, before + base[d]])
                    base[d] += before + after
                elif kind == "expand" and repeats and base and not any(v[0] == "expand" for v in views):
                    views.insert(0, [kind, *base])
                    base[self.rng.randrange(len(base))] = 1
        tensor = self.values(base, **kwargs) if values is None else values
        self.bases.append(tensor)
        self.inputs.append({"views": views, "grad": grad and tensor.dtype.is_floating_point})

    def integers(self, shape, low, high):
        return torch.tensor([self.rng.randrange(low, high) for _ in range(math.prod(shape))],
                            dtype=torch.int64).reshape(shape)

    def bools(self, shape):
        return torch.tensor([self.rng.random() < 0.6 for _ in range(math.prod(shape))],
                            dtype=torch.bool).reshape(shape)

    def numbers_or_counts(self, shape):
        """An input: floats, or integers or bools, which add up in int64."""
        counts = [None, None, None, self.integers(shape, -9, 9), self.bools(shape)]
        self.input(shape, values=self.rng.choice(counts))

    def broadcast(self, shape):
        """A shape that broadcasts to `shape`: without leading dimensions, with sizes of 1."""
        part = [1 if self.rng.random() < 0.3 else size for size in shape]
        return part[self.rng.randint(0, len(part)):] if self.rng.random() < 0.4 else part

    def pair(self, **kwargs):
        shape = self.shape()
        first = self.rng.randrange(2)
        for i in range(2):
            self.input(shape if i == first else self.broadcast(shape), **kwargs)

    def dims(self, ndim):
        """None, one dimension, or several."""
        kind = self.rng.randrange(3) if ndim else 0
        if kind == 0:
            return []
        return [self.dim(ndim)] if kind == 1 else self.rng.sample(range(ndim), self.rng.randint(1, ndim))


def function(name, run):
    """Decorates the function that draws cases of torch's `name`."""
    def register(draw):
        assert name not in FUNCTIONS, name
        FUNCTIONS[name] = (draw, run)
        return draw
    return register


def apply_views(base, views):
    for kind, *numbers in views:
        if kind == "transpose":
            base = base.transpose(*numbers)
        elif kind == "permute":
            base = base.permute(numbers)
        elif kind == "expand":
            base = base.expand(numbers)
        else:
            dim, begin, end = numbers
            base = base.narrow(dim, begin, end - begin)
    return base


# ---- Element by element. ----

def unary(name, run, **kwargs):
    EXACT.add(name)
    function(name, lambda x, a: run(*x))(lambda d: d.input(d.shape(), **kwargs))


unary("torch.abs", torch.abs, special_grad=False)
unary("torch.rsqrt", torch.rsqrt, special_grad=False)
for _name in ["ceil", "cos", "erf", "exp", "expm1", "floor", "neg", "round", "sigmoid", "sin",
              "square", "tanh", "isfinite", "isnan", "sqrt", "log", "log1p", "reciprocal"]:
    unary(f"torch.{_name}", getattr(torch, _name))
unary("torch.sign", torch.sign, special=False)
unary("torch.nn.functional.relu", F.relu)
unary("torch.nn.functional.silu", F.silu)


def with_number(name, run, key, draw_number, required=True, exact=True, **kwargs):
    if exact:
        EXACT.add(name)

    def draw(d):
        d.input(d.shape(), **kwargs)
        if required or d.rng.random() < 0.7:
            d.args[key] = draw_number(d)
    function(name, lambda x, a: run(*x, **a))(draw)


# At NaN torch's derivative of ELU is NaN in its vector loop, and 1 in the rest of it.
with_number("torch.nn.functional.elu", F.elu, "alpha", lambda d: d.rng.randint(1, 16) / 8, False,
            special_grad=False)
with_number("torch.nn.functional.leaky_relu", F.leaky_relu, "negative_slope",
            lambda d: d.rng.randint(1, 16) / 32, False, special_grad=False)
with_number("torch.nn.functional.gelu", F.gelu, "approximate", lambda d: d.rng.choice(["tanh", "none"]),
            exact=False)
# The threshold says above which x torch takes softplus(x) for x: Lockstep has none.
with_number("torch.nn.functional.softplus", F.softplus, "threshold", lambda d: 1000.0)


@function("torch.clamp", lambda x, a: torch.clamp(*x, **a))
def _(d):
    d.input(d.shape(), special_grad=False)
    low = d.rng.randint(-3, 0) + 0.0625  # the derivative at the limits is another one
    limits = {"min": low, "max": low + d.rng.randint(0, 3)}
    d.args.update({k: v for k, v in limits.items() if k == d.rng.choice(["min", "max"]) or d.rng.random() < 0.7}
                  or limits)


def binary(name, run, first=False, offset=0.0, **kwargs):
    """Of two tensors, or of a tensor and a number, which may come first."""
    EXACT.add(name)

    def draw(d):
        if d.rng.random() < 0.3:
            d.input(d.shape(), **kwargs)
            d.args["other"] = (d.number() or 1.0) + offset
            if first and d.rng.random() < 0.5:
                d.args["self"] = d.args.pop("other")
        else:
            d.pair(**kwargs)

    def call(x, a):
        if "self" in a:
            return run(a["self"], *x)
        return run(*x, a["other"]) if "other" in a else run(*x)
    function(name, call)(draw)


binary("torch.add", lambda a, b: a + b, first=True)
binary("torch.sub", lambda a, b: a - b, first=True)
binary("torch.mul", lambda a, b: a * b, first=True)
binary("torch.div", lambda a, b: a / b, first=True)
# The number equals no element: the derivative there is another one.
binary("torch.maximum", lambda a, b: torch.maximum(a, torch.as_tensor(b, dtype=torch.float64)), offset=0.0625,
       special_grad=False)
binary("torch.minimum", lambda a, b: torch.minimum(a, torch.as_tensor(b, dtype=torch.float64)), offset=0.0625,
       special_grad=False)
for _name in ["eq", "ne", "lt", "le", "gt", "ge"]:
    binary(f"torch.{_name}", getattr(torch, _name))


@function("torch.pow", lambda x, a: torch.pow(a["self"], *x) if "self" in a else
          torch.pow(*x, a["exponent"]) if "exponent" in a else torch.pow(*x))
def _(d):
    kind = d.rng.randrange(3)
    if kind == 0:
        d.input(d.shape())
        # torch has x^0.5 and x^-0.5 as sqrt(x) and rsqrt(x), which are other numbers at -infinity.
        halves = [] if d.mode == "special" else [0.5, -0.5]
        d.args["exponent"] = d.rng.choice([0.0, 1.0, 2.0, 3.0, -1.0, -2.0, 1.375, -0.375, *halves])
    elif kind == 1:
        d.input(d.shape())
        d.args["self"] = d.rng.choice([0.5, 1.0, 2.0, 2.75])
    else:
        shape = d.shape()
        d.input(shape, positive=True, special=False)
        d.input(d.broadcast(shape), special=False)


for _name in ["logical_and", "logical_or", "logical_not"]:
    def _draw(d, count=1 if _name == "logical_not" else 2):
        shape = d.shape()
        for i in range(count):
            d.input(shape, values=d.bools(d.broadcast(shape) if i else shape))
    function(f"torch.{_name}", lambda x, a, run=getattr(torch, _name): run(*x))(_draw)


@function("torch.where", lambda x, a: torch.where(*x, a["other"]) if "other" in a else torch.where(*x))
def _(d):
    shape = d.shape()
    d.input(shape, values=d.bools(d.broadcast(shape)))
    d.input(shape)
    if d.rng.random() < 0.3:
        d.args["other"] = d.number()
    else:
        d.input(d.broadcast(shape))


@function("torch.Tensor.to", lambda x, a: x[0].to(getattr(torch, a["dtype"])))
def _(d):
    d.input(d.shape(), special=False, grad=False)
    d.args["dtype"] = d.rng.choice(["int64", "float64", "int32", "bool"])


# ---- Reductions. ----

def reduction(name, run, several=True, none=True, least=0, keywords=None, add_input=None, **kwargs):
    def draw(d):
        shape = d.shape(least=least)
        (add_input or Draw.input)(d, shape, **kwargs)
        dims = d.dims(len(shape)) if several or not shape else [d.dim(len(shape))]
        if not dims and not none:
            dims = list(range(len(shape)))
        if dims:
            d.args["dim"] = dims
            d.args["keepdim"] = d.rng.random() < 0.4
        for key, choose in (keywords or {}).items():
            d.args[key] = choose(d)
    function(name, lambda x, a: run(*x, **a))(draw)


def one_dim(run):
    """For functions of torch that take one dimension as a number."""
    def call(x, dim=None, **kwargs):
        return run(x, **kwargs) if dim is None else run(x, dim=dim[0], **kwargs)
    return call


reduction("torch.sum", torch.sum, add_input=Draw.numbers_or_counts)
reduction("torch.mean", torch.mean, least=1)
reduction("torch.logsumexp", lambda x, dim=None, **k: torch.logsumexp(x, dim or list(range(x.ndim)), **k),
          special_grad=False)
reduction("torch.prod", one_dim(torch.prod), several=False, special_grad=False)
reduction("torch.any", torch.any, grad=False)
reduction("torch.all", torch.all, grad=False)
reduction("torch.amax", torch.amax, least=1, ties=False, special=False)
reduction("torch.amin", torch.amin, least=1, ties=False, special=False)
reduction("torch.argmax", one_dim(torch.argmax), several=False, least=1, grad=False)
reduction("torch.argmin", one_dim(torch.argmin), several=False, least=1, grad=False)
reduction("torch.linalg.vector_norm",
          lambda x, ord, **k: torch.linalg.vector_norm(x, math.inf if ord == "inf" else ord, **k),
          least=1, ties=False, special=False, keywords={"ord": lambda d: d.rng.choice([1, 2, 2, "inf"])})


def largest(name):
    @function(name, lambda x, a: tuple(getattr(torch, name.removeprefix("torch."))(*x, **a)))
    def _(d):
        shape = d.shape(low=1, least=1)
        d.mode = "plain" if d.mode == "scalar" else d.mode
        d.input(shape)
        d.args.update(dim=d.dim(len(shape)), keepdim=d.rng.random() < 0.4)


largest("torch.max")
largest("torch.min")


def spread(name):
    """var and std, of dimensions with enough elements."""
    @function(name, lambda x, a: getattr(torch, name.removeprefix("torch."))(*x, **a))
    def _(d):
        d.mode = "plain" if d.mode == "empty" else d.mode
        shape = [s + 1 for s in d.shape(low=1)] or [3]
        d.input(shape, special=False, ties=name == "torch.var")
        dims = d.dims(len(shape))
        if dims:
            d.args["dim"] = dims
        d.args.update(correction=d.rng.choice([0, 1, 1]), keepdim=bool(dims) and d.rng.random() < 0.4)


spread("torch.var")
spread("torch.std")


@function("torch.cumsum", lambda x, a: torch.cumsum(*x, **a))
def _(d):
    shape = d.shape(low=1)
    d.numbers_or_counts(shape)
    d.args["dim"] = d.dim(len(shape))


@function("torch.topk", lambda x, a: tuple(torch.topk(*x, **a)))
def _(d):
    shape = d.shape(low=1)
    d.input(shape, ties=False, special=False, repeats=False)  # torch leaves the order of equal elements open
    d.args["dim"] = d.dim(len(shape))
    d.args.update(k=d.rng.randint(0, shape[d.args["dim"]]), largest=d.rng.random() < 0.6)


@function("torch.sort", lambda x, a: tuple(torch.sort(*x, stable=True, **a)))
def _(d):
    shape = d.shape(low=1)
    d.input(shape)
    d.args.update(dim=d.dim(len(shape)), descending=d.rng.random() < 0.5)


# ---- Indices. ----

@function("torch.index_select", lambda x, a: torch.index_select(x[0], a["dim"], x[1]))
def _(d):
    shape = d.shape(low=1)
    d.args["dim"] = d.dim(len(shape))
    d.input(shape)
    d.input([], values=d.integers([d.rng.randint(0, 6) if shape[d.args["dim"]] else 0], 0,
                                  max(shape[d.args["dim"]], 1)))


def index_shape(d, shape, dim):
    sizes = list(shape)
    sizes[dim] = d.rng.randint(0, 6) if shape[dim] else 0
    return sizes


@function("torch.gather", lambda x, a: torch.gather(x[0], a["dim"], x[1]))
def _(d):
    shape = d.shape(low=1)
    d.args["dim"] = d.dim(len(shape))
    d.input(shape)
    d.input([], values=d.integers(index_shape(d, shape, d.args["dim"]), 0, max(shape[d.args["dim"]], 1)))


@function("torch.scatter", lambda x, a: torch.scatter(x[0], a["dim"], x[1], x[2]))
def _(d):
    shape = d.shape(low=1)
    dim = d.args["dim"] = d.dim(len(shape))
    sizes = list(shape)
    sizes[dim] = d.rng.randint(0, shape[dim])
    # Distinct in `dim`: of several for one place torch leaves open which counts.
    order = torch.argsort(d.values(shape, special=False, ties=False), dim=dim)
    d.input(shape)
    d.input([], values=order.narrow(dim, 0, sizes[dim]).contiguous())
    d.input(sizes)


@function("torch.scatter_add", lambda x, a: torch.scatter_add(x[0], a["dim"], x[1], x[2]))
def _(d):
    shape = d.shape(low=1)
    dim = d.args["dim"] = d.dim(len(shape))
    sizes = index_shape(d, shape, dim)
    d.input(shape)
    d.input([], values=d.integers(sizes, 0, max(shape[dim], 1)))
    d.input(sizes)


@function("torch.nn.functional.one_hot", lambda x, a: F.one_hot(*x, **a))
def _(d):
    d.args["num_classes"] = d.rng.randint(1, 6)
    d.input([], values=d.integers(d.shape(), 0, d.args["num_classes"]))


@function("torch.nn.functional.embedding", lambda x, a: F.embedding(*x))
def _(d):
    rows = d.rng.randint(1, 7)
    d.input([], values=d.integers(d.shape(high=2), 0, rows))
    d.mode = "plain" if d.mode == "empty" else d.mode
    d.input([rows, d.rng.randint(1, 6)])
