#!/usr/bin/env python3
"""A small program beside PyTorch's: how long it takes to compile, how large it is, and how long a step takes.

    bazel build -c opt //:release
    python3 tests/peers/small_program/small_program.py bazel-bin/tools/release/lockstep-*.tar.gz [--rounds=5]

Builds with_lockstep.cc from the archive and with_libtorch.cc from the libtorch that torch brings, and times 10,000
steps of a 2-64-64-2 MLP (32 points, AdamW, the loss read each step): of both, and of the same loop in Python, eager,
with each of AdamW's implementations, of which the fastest counts. The programs alternate; a figure is the median of
the rounds. Needs torch, g++ and pkg-config.
"""
import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
STEPS = 10_000


def eager(implementation):
    import torch
    from torch import nn
    torch.manual_seed(1)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    choice = {} if implementation == "for-loop" else {implementation: True}
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-3, **(choice or {"foreach": False}))
    x = torch.randn(32, 2)
    labels = (x[:, 0] * x[:, 1] > 0).long()
    begin = time.perf_counter()
    for _ in range(STEPS):
        loss = nn.functional.cross_entropy(model(x), labels)
        loss.backward()
        adamw.step()
        adamw.zero_grad()
        value = loss.item()
    print((time.perf_counter() - begin) * 1e6 / STEPS, value)


def size(path):
    """Of the program without symbols, in KiB."""
    subprocess.run(["strip", path], check=True)
    return os.path.getsize(path) / 1024


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("archive")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    import torch
    from torch.utils import cpp_extension
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["tar", "-xf", os.path.abspath(options.archive), "-C", folder], check=True)
        root = next(pathlib.Path(folder).glob("lockstep-*"))
        flags = lambda name, *what: subprocess.run(
            ["pkg-config", *what, name], env={**os.environ, "PKG_CONFIG_PATH": f"{root}/lib/pkgconfig"},
            check=True, capture_output=True, text=True).stdout.split()
        libtorch = pathlib.Path(torch.__file__).parent / "lib"
        torch_libraries = [f"-L{libtorch}", f"-Wl,-rpath,{libtorch}", "-ltorch_cpu", "-lc10"]
        if torch.cuda._is_compiled():
            torch_libraries += ["-Wl,--no-as-needed", "-ltorch", "-Wl,--allow-shlib-undefined"]
        builds = {
            "Lockstep": ("with_lockstep.cc", flags("lockstep", "--cflags"), flags("lockstep", "--libs")),
            "Lockstep, static": ("with_lockstep.cc", flags("lockstep-static", "--cflags"),
                                 flags("lockstep-static", "--libs")),
            "libtorch": ("with_libtorch.cc",
                         ["-std=c++20"] + [f"-I{path}" for path in cpp_extension.include_paths()], torch_libraries),
        }
        programs = {}
        for name, (source, compile_flags, libraries) in builds.items():
            program = f"{folder}/{source}-{len(programs)}"
            times = []
            for _ in range(options.rounds):
                begin = time.perf_counter()
                subprocess.run(["g++", "-O2", HERE / source, *compile_flags, *libraries, "-o", program], check=True)
                times.append(time.perf_counter() - begin)
            print(f"{name:18} {statistics.median(times):6.2f} s to compile and link, {size(program):8.0f} KiB")
            programs[name] = [program, str(STEPS)]
        print(f"the libraries: liblockstep.so {os.path.getsize(root / 'lib/liblockstep.so') / 2**20:.0f} MiB, "
              f"libtorch_cpu.so {os.path.getsize(libtorch / 'libtorch_cpu.so') / 2**20:.0f} MiB")
        for implementation in ("for-loop", "foreach", "fused"):
            programs[f"PyTorch, {implementation}"] = [sys.executable, __file__, "--eager", implementation]
        steps = {name: [] for name in programs}
        for _ in range(options.rounds):
            for name, command in programs.items():
                out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                steps[name].append(float(out.split()[0]))
                assert 0 <= float(out.split()[1]) < 0.2, f"{name} has not learned: {out}"
        medians = {name: statistics.median(times) for name, times in steps.items()}
        for name, median in medians.items():
            print(f"{name:18} {median:8.1f} us a step")
        best = min(time for name, time in medians.items() if name.startswith("PyTorch"))
        print(f"PyTorch's best is {best / medians['Lockstep']:.2f} times Lockstep's")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--eager"]:
        eager(sys.argv[2])
    else:
        main()
