#!/usr/bin/env python3
"""Tables of how well communication hides behind backward, for PERFORMANCE.md.

    measure.py --overlap=bazel-bin/tests/dist/overlap/overlap [--python=PYTHON] TABLE...

TABLE: rates (the step against T*, and against PyTorch's DDP if --python has it), buckets,
ordered (the cost of the fixed-order sum at 2, 4 and 8 ranks). The runs that a line compares take
turns, --rounds times; figures are medians. The machine should otherwise be idle.

The links are slowed down until communication takes --loads times as long as computation does on
this machine; --rates gives Mbit/s instead. Ranks share their core with their communication, whose
processor time cannot be hidden, so the step should take the better part of a second. That time is
part of "added", the difference to a step without communication, but not of "exposed", the wait at
the end of backward.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def on_link(ranks, rate, command):
    """What rank 0 of a program prints on links of `rate` Mbit/s."""
    link = [os.path.join(HERE, "link.sh"), f"--ranks={ranks}", str(rate)]
    out = subprocess.run(link + command, capture_output=True, text=True, check=False)
    if out.returncode != 0:
        sys.exit(f"measure: {' '.join(command)} failed: {out.stderr}")
    return out.stdout


def run(options, ranks, rate, command, size, buckets, *more):
    arguments = [*size, options.steps, *buckets, *more]
    return json.loads(on_link(ranks, rate, command + [str(a) for a in arguments]))


def medians(results):
    return {
        key: statistics.median(r[key] for r in results)
        for key, value in results[0].items()
        if not isinstance(value, str)
    }


def in_turn(options, runs):
    """The medians of several runs, by the name of the run."""
    results = {name: [] for name in runs}
    for _ in range(options.rounds):
        for name, one in runs.items():
            results[name].append(one())
    return {name: medians(r) for name, r in results.items()}


def row(*cells):
    print("| " + " | ".join(str(c) for c in cells) + " |", flush=True)


def header(*cells):
    row(*cells)
    row(*["---"] * len(cells))


def milliseconds_of_link(byte_count, rate):
    """The time on a link of `rate` Mbit/s: two ranks send and receive each gradient once."""
    return 8e-3 * byte_count / rate


def rates_for(options):
    """The links' Mbit/s at which communication takes --loads times as long as computation."""
    alone = run(options, 2, 10000, [options.overlap], options.size, options.buckets)
    link_ms = milliseconds_of_link(alone["bytes"], 1)
    return tuple(round(link_ms / (alone["alone_ms"] * load)) for load in options.loads)


def rates(options):
    ours, peer = [options.overlap], [options.python, os.path.join(HERE, "ddp_peer.py")]
    header(
        "Mbit/s", "step alone, ms", "sums alone, ms", "T*, ms", "step, ms", "step / T*",
        "exposed, ms", "added, ms", "of a core", "DDP: buckets, MiB", "alone, ms", "step, ms",
        "exposed, ms", "added, ms", "DDP / this",
    )  # fmt: skip
    for rate in options.rates:
        runs = {"ours": lambda r=rate: run(options, 2, r, ours, options.size, options.buckets)}
        for b in dict.fromkeys([options.buckets, options.ddp_buckets]) if options.python else ():
            runs[b] = lambda r=rate, b=b: run(options, 2, r, peer, options.size, b)
        got = in_turn(options, runs)
        r = got.pop("ours")
        cells = [f"{r[k]:.0f}" for k in ("alone_ms", "sums_alone_ms", "best_ms", "step_ms")]
        cells += [f"{r['step_over_best']:.2f}"]
        cells += [f"{r['exposed_ms']:.0f}", f"{r['added_ms']:.0f}", f"{r['processor_share']:.2f}"]
        # The better of DDP's.
        for b, ddp in sorted(got.items(), key=lambda item: item[1]["step_ms"])[:1]:
            cells += ["/".join(f"{mib:g}" for mib in b), f"{ddp['alone_ms']:.0f}"]
            cells += [f"{ddp[k]:.0f}" for k in ("step_ms", "exposed_ms", "added_ms")]
            cells += [f"{ddp['step_ms'] / r['step_ms']:.2f}"]
        row(rate, *cells)


def buckets(options):
    header("first, MiB", "others, MiB", "buckets", "T*, ms", "step, ms", "exposed, ms")
    caps = [(cap, cap) for cap in options.caps] + [options.buckets]
    rate = options.rates[len(options.rates) // 2]
    got = in_turn(
        options,
        {
            b: lambda b=b: run(options, 2, rate, [options.overlap], options.size, b)
            for b in dict.fromkeys(caps)
        },
    )
    for (first, others), r in got.items():
        figures = [f"{r[k]:.0f}" for k in ("buckets", "best_ms", "step_ms")]
        row(first, others, *figures, f"{r['exposed_ms']:.0f}")


def ordered(options):
    header("ranks", "sums, fast, ms", "ordered, ms", "ratio", "step, fast, ms", "ordered, ms", "ratio")
    rate = options.rates[len(options.rates) // 2]
    for ranks in (2, 4, 8):
        got = in_turn(
            options,
            {
                s: lambda s=s, n=ranks: run(
                    options, n, rate, [options.overlap], options.small, options.buckets, s
                )
                for s in ("fast", "ordered")
            },
        )
        cells = []
        for key in ("sums_alone_ms", "step_ms"):
            fast, fixed = got["fast"][key], got["ordered"][key]
            cells += [f"{fast:.0f}", f"{fixed:.0f}", f"{fixed / fast:.2f}"]
        row(ranks, *cells)


TABLES = {"rates": rates, "buckets": buckets, "ordered": ordered}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    numbers = lambda kind: lambda text: tuple(kind(t) for t in text.split(","))  # noqa: E731
    parser.add_argument("--overlap", required=True, help="the program of this folder, built")
    parser.add_argument("--python", help="an interpreter that has torch")
    parser.add_argument("--rates", type=numbers(int), help="Mbit/s")
    parser.add_argument("--loads", type=numbers(float), default=(0.5, 1.0, 2.5))
    parser.add_argument("--size", type=numbers(int), default=(25, 512, 2048), help="layers,width,batch")
    parser.add_argument("--small", type=numbers(int), default=(8, 512, 16), help="for `ordered`")
    parser.add_argument("--buckets", type=numbers(float), default=(1.0, 2.0), help="first,others in MiB")
    parser.add_argument("--ddp_buckets", type=numbers(float), default=(1.0, 25.0),
                        help="for DDP, which has --buckets as well; the shorter step counts")  # fmt: skip
    parser.add_argument("--caps", type=numbers(float), default=(0.25, 1.0, 2.0, 4.0, 8.0, 25.0))
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("tables", nargs="+", choices=TABLES)
    options = parser.parse_args()
    options.rates = options.rates or rates_for(options)
    for table in options.tables:
        TABLES[table](options)
        print()


if __name__ == "__main__":
    main()
