#!/usr/bin/env python3
"""Resources that ptxas assigned to each CUDA kernel: registers, shared memory, stack and spills, per architecture.

  bazel build --config=cuda //kernels:resources
  tools/kernel_resources.py bazel-bin/kernels/_nvcc          # a table; --json, --filter=NAME
  tools/kernel_resources.py --check bazel-bin/kernels/_nvcc  # exits with 1 if a kernel uses local memory, or
                                                             # ptxas had to add to it, or to ignore a part

Arguments are ptxas's reports (*.resources), or folders of them. "warps" is how many of an SM's 64 (sm_80,
sm_90) the registers allow. Shared memory is the static part only: the compiler does not know what a launch
requests in addition. A stack is local memory: spilled registers, and arrays whose indices are not constants.
"""
import argparse
import json
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

# Kernels that may use local memory, and why: a pattern of their readable name -> the reason.
MAY_USE_LOCAL_MEMORY = {
    r"::(Sin|Cos)>": "for huge arguments sinf and cosf keep a product with the digits of 2 / pi in an array",
}

_ENTRY = re.compile(
    r"Compiling entry function '(?P<symbol>[^']+)' for '(?P<arch>[^']+)'\n"
    r"(?:.*\n)*?.*Function properties for (?P=symbol)\n"
    r"\s*(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads\n"
    r"(?:.*\n)*?"
    r".*?Used (?P<registers>\d+) registers(?P<rest>.*)")
# "(C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to ...", and the like:
# ptxas reports that it had to change a kernel for the worse, and still succeeds.
_REMARK = re.compile(r".*\(C75\d\d\).*")
_SHARED = re.compile(r"(\d+) bytes smem")
# nvcc's name of an unnamed namespace: "_GLOBAL__N__<hash>_<n>_<file>_<hash>_<number>", whose digits run
# into the length of the next name.
_UNNAMED = re.compile(r"(\d+)_GLOBAL__N__")


@dataclass(frozen=True)
class Kernel:
    name: str
    arch: str
    registers: int
    shared: int
    stack: int
    spill_stores: int
    spill_loads: int

    @property
    def local(self):
        return self.stack + self.spill_stores + self.spill_loads

    @property
    def warps(self):
        """How many warps fit the registers of an SM: 16,384 in each of four parts, allocated by 8 per thread."""
        return 4 * min(16, 16384 // (32 * max(8, -(-self.registers // 8) * 8)))


def plain_symbol(symbol):
    """The symbol with "_GLOBAL__N_1" for its unnamed namespace, which demanglers understand."""
    found = _UNNAMED.search(symbol)
    if not found:
        return symbol
    begin = found.start() + len(found[1])
    whole = symbol[begin:begin + int(found[1])]
    return symbol.replace(found[1] + whole, "12_GLOBAL__N_1")


def demangle(symbols):
    """Short readable names, without arguments, Lockstep's namespaces and the result's type."""
    plain = [plain_symbol(symbol) for symbol in symbols]
    if shutil.which("c++filt"):
        done = subprocess.run(["c++filt"], input="\n".join(plain) + "\n", text=True, check=True, stdout=subprocess.PIPE)
        plain = done.stdout.splitlines()
    return [short_name(name) for name in plain]


def short_name(name):
    name = re.sub(r"lockstep::(cuda::|ops::)?|\(anonymous namespace\)::|^void ", "", name)
    name = re.sub(r"\((bool|int|unsigned int|long)\)", "", name)
    name = name.replace("__nv_bfloat16", "bf16").replace("__half", "f16")
    depth = 0
    for i, letter in enumerate(name):  # the arguments begin at the first parenthesis outside of <>
        depth += {"<": 1, ">": -1}.get(letter, 0)
        if letter == "(" and depth == 0:
            return name[:i]
    return name


def parse(text):
    found = list(_ENTRY.finditer(text))
    entries = text.count("Compiling entry function")
    if len(found) != entries:
        raise ValueError(f"understood {len(found)} of {entries} kernels: has ptxas changed its output?")
    kernels = []
    for entry, name in zip(found, demangle([e["symbol"] for e in found])):
        shared = _SHARED.search(entry["rest"])
        kernels.append(Kernel(name, entry["arch"], int(entry["registers"]), int(shared[1]) if shared else 0,
                              int(entry["stack"]), int(entry["stores"]), int(entry["loads"])))
    return kernels


def read(paths):
    """(The number of files, their kernels, ptxas's remarks.)"""
    files = [file for path in map(Path, paths)
             for file in (sorted(path.rglob("*.resources")) if path.is_dir() else [path])]
    texts = [file.read_text() for file in files]
    kernels = {kernel for text in texts for kernel in parse(text)}
    return len(files), sorted(kernels, key=lambda k: (k.name, k.arch)), [r for text in texts for r in remarks(text)]


def remarks(text):
    """ptxas's remarks about kernels, with readable names."""
    found = _REMARK.findall(text)
    symbols = sorted(set(re.findall(r"_Z\w+", "\n".join(found))), key=len, reverse=True)
    for symbol, name in zip(symbols, demangle(symbols)):
        found = [line.replace(symbol, name) for line in found]
    return found


def violations(kernels, allowed=None):
    allowed = MAY_USE_LOCAL_MEMORY if allowed is None else allowed
    return [k for k in kernels if k.local and not any(re.search(pattern, k.name) for pattern in allowed)]


def print_table(kernels):
    print(f"{'kernel':<90} {'arch':<7} {'registers':>9} {'warps':>5} {'shared':>6} {'stack':>5} {'spills':>9}")
    for k in kernels:
        print(f"{k.name:<90} {k.arch:<7} {k.registers:9} {k.warps:5} {k.shared:6} {k.stack:5} "
              f"{f'{k.spill_stores}/{k.spill_loads}':>9}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", nargs="+", help="*.resources files, or folders of them")
    parser.add_argument("--filter", default="", help="only kernels whose name contains this")
    parser.add_argument("--json", help="write the table here, too")
    parser.add_argument("--check", action="store_true",
                        help="only list the kernels that use local memory, and ptxas's remarks")
    args = parser.parse_args()
    files, kernels, said = read(args.reports)
    kernels = [k for k in kernels if args.filter in k.name]
    if not kernels:
        parser.error(f"no kernel in {files} reports: were they built with --config=cuda?")
    if args.json:
        Path(args.json).write_text(json.dumps([asdict(k) for k in kernels], indent=1) + "\n")
    bad = violations(kernels)
    print_table(bad if args.check else kernels)
    for remark in said:
        print(remark)
    print(f"{len(kernels)} kernels of {files} files, {len(bad)} use local memory and should not, "
          f"{len(said)} remarks of ptxas")
    return int(args.check and bool(bad or said))


if __name__ == "__main__":
    sys.exit(main())
