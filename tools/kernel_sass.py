#!/usr/bin/env python3
"""Statistics of each CUDA kernel's machine code (SASS), per architecture, and a check that they do not get worse.

  bazel build --config=cuda //kernels:resources
  tools/kernel_sass.py bazel-bin/kernels/_nvcc            # every kernel; --filter=NAME
  tools/kernel_sass.py --check bazel-bin/kernels/_nvcc    # exits with 1 if a rule or the table is violated
  tools/kernel_sass.py --update bazel-bin/kernels/_nvcc   # rewrites the table, kernels/sass.txt

The argument is a folder of the ops' objects (OP_cuda/*.o). The rules hold for every kernel except for the
exceptions below. The table has a line per op, kernel and architecture, and adds up the instances of a template:

  n          the instances                         generic    accesses that find out at run time which
  wide       of these with 128-bit accesses                   memory is meant
  matrix     of these with matrix instructions     local      accesses to local memory
  narrow     global accesses of 32 bits or less    divergent  BRA.DIV: a warp's shuffle or barrier, made
  half       global accesses of 64 bits                       for threads that are not together
  f64        arithmetic in double precision        atomic     atomics and reductions in memory
                                                   call       slow paths of divisions, 64-bit divisions

Fewer instances with wide accesses or matrix instructions are worse, and so is more of anything else. The table is valid
for the compiler in its first line; with others only the rules are checked.
"""
import argparse
import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from kernel_resources import demangle

TABLE = Path("kernels/sass.txt")

# Classes of instructions, by the beginnings of their names. LDC, LDS and LDSM are in none.
CLASSES = {
    "wide": r"(LDG|STG|LDGSTS)\b.*\.128\b|UTMA(LDG|STG)\b",
    "matrix": r"(HMMA|HGMMA|QGMMA|IMMA|IGMMA|DMMA|BMMA|BGMMA)\b",
    "narrow": r"(LDG|STG|LDGSTS)\b(?!.*\.(64|128)\b)",
    "half": r"(LDG|STG|LDGSTS)\b.*\.64\b",
    "f64": r"D(ADD|MUL|FMA|SETP|MNMX)\b",
    "generic": r"(LD|ST)\b",
    "local": r"(LDL|STL)\b",
    "divergent": r"BRA\.DIV\b",
    "atomic": r"(ATOM|ATOMG|ATOMS|RED|REDG|REDS)\b",
    "call": r"CALL\b",
}
# For these classes the table has the number of instances that have any, and fewer are worse; for
# the others, the sum over all instances.
GOOD = ("wide", "matrix")
COLUMNS = ("n", *CLASSES)

# Classes that no kernel may have.
RULES = ("generic", "local", "atomic", "divergent")
# The exceptions: (a class, a pattern of "op kernel") -> the reason.
MAY_HAVE = {
    ("local", r"^unary .*::(Sin|Cos)>"): "for huge arguments sinf and cosf keep a product with the digits of 2 / pi in "
                                         "an array",
    ("atomic", r"^reduce SumIntegersKernel"): "integers have the same sum in any order",
    ("divergent", r"^reduce SumIntegersKernel"): "the compiler does not see that all lanes have left the loop, in which "
                                                 "each may meet several columns",
}

_CLASSES = {name: re.compile(pattern) for name, pattern in CLASSES.items()}
_LINE = re.compile(r"\s{0,16}(?:/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P[0-9T]+\s+)?([A-Z][A-Z0-9_]*(?:\.[A-Za-z0-9_]+)*)"
                   r"|Function : (\S+)|code for (\S+))")
_COMPILER = re.compile(rb"Cuda compilation tools, release [\d.]+, V([\d.]+)")


@dataclass(frozen=True)
class Kernel:
    op: str
    name: str
    arch: str
    counts: dict  # a class -> instructions

    @property
    def family(self):
        return self.op, self.name.partition("<")[0], self.arch


def classify(mnemonics):
    """How many of the instructions {name: number} are in each class."""
    return {name: sum(number for mnemonic, number in mnemonics.items() if pattern.match(mnemonic))
            for name, pattern in _CLASSES.items()}


def parse(lines, op):
    """The kernels in the output of `cuobjdump -sass` for an op's object."""
    found, arch, mnemonics = [], None, Counter()
    for line in lines:
        match = _LINE.match(line)
        if not match:
            continue
        mnemonic, symbol, code = match.groups()
        if mnemonic:
            mnemonics[mnemonic] += 1
        elif symbol:
            mnemonics = Counter()
            found.append((symbol, arch, mnemonics))
        else:
            arch = code
    for symbol, arch, mnemonics in found:
        if not mnemonics or not arch:
            raise ValueError(f"no instruction or architecture of {symbol}: has cuobjdump changed its output?")
    names = demangle([symbol for symbol, _, _ in found])
    return [Kernel(op, name, arch, classify(mnemonics)) for (_, arch, mnemonics), name in zip(found, names)]


def find_cuobjdump():
    """(cuobjdump's path, the PATH in which it finds nvdisasm), or None."""
    # Bazel gives a test another HOME.
    homes = [os.environ.get("HOME", "/"), pwd.getpwuid(os.getuid()).pw_dir]
    folders = os.environ.get("PATH", "").split(":")
    folders += [home + "/bin" for home in (os.environ.get("CUDA_HOME"), "/usr/local/cuda", "/opt/cuda") if home]
    folders += [str(folder) for home in homes for folder in Path(home).glob(".cache/lockstep-cuobjdump/nvidia/*/bin")]
    path = ":".join(folders)
    if shutil.which("cuobjdump", path=path) and shutil.which("nvdisasm", path=path):
        return shutil.which("cuobjdump", path=path), path
    return None


def read(folder):
    """The kernels of the objects below the folder, and the version of the compiler that made them."""
    tool = find_cuobjdump()
    if not tool:
        raise SystemExit("kernel_sass: cuobjdump and nvdisasm, which it runs, are neither in PATH nor in $CUDA_HOME/bin"
                         " nor in ~/.cache.\n  tools/setup --dev fetches them (NVIDIA's packages are cuda-cuobjdump "
                         "and cuda-nvdisasm)")
    cuobjdump, path = tool
    environment = {**os.environ, "PATH": path}
    objects = sorted(folder.rglob("*.o"), key=lambda o: o.stat().st_size)
    if not objects:
        raise SystemExit(f"kernel_sass: no object below {folder}: was it built with --config=cuda?")

    def disassemble(file):
        command = [cuobjdump, "-sass", file]
        with subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE) as process:
            kernels = parse(process.stdout, file.parent.name.removesuffix("_cuda"))
        if process.returncode:
            raise RuntimeError(f"cuobjdump -sass {file} exited with {process.returncode}")
        return kernels

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # the largest first
        kernels = [kernel for found in pool.map(disassemble, reversed(objects)) for kernel in found]
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run([cuobjdump, "-xelf", "all", objects[0].resolve()], cwd=scratch, env=environment, check=True,
                       stdout=subprocess.DEVNULL)
        versions = {found[1].decode() for file in Path(scratch).iterdir()
                    for found in _COMPILER.finditer(file.read_bytes())}
    return sorted(kernels, key=lambda k: (k.family, k.name)), " ".join(sorted(versions))


def summarize(kernels):
    """The table: a family -> {column: figure}."""
    families = defaultdict(list)
    for kernel in kernels:
        families[kernel.family].append(kernel.counts)
    return {family: {"n": len(counts), **{
        column: sum(bool(c[column]) if column in GOOD else c[column] for c in counts) for column in CLASSES}}
        for family, counts in families.items()}


def format_table(table, compiler):
    head = f"# nvcc {compiler}. Written by tools/kernel_sass.py --update, which says what the columns are."
    rows = [("op", "kernel", "arch", *COLUMNS)]
    rows += [(*family, *(str(line[column] or ".") for column in COLUMNS)) for family, line in table.items()]
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join([head] + ["  ".join(cell.ljust(width) if i < 3 else cell.rjust(width) for i, (cell, width) in
                                         enumerate(zip(row, widths))) for row in rows]) + "\n"


def parse_table(text):
    """(The table, its compiler) from the output of format_table."""
    head, columns, *rows = text.splitlines()
    columns = columns.split()[3:]
    table = {}
    for row in rows:
        op, name, arch, *figures = row.split()
        table[op, name, arch] = {column: int(figure.replace(".", "0")) for column, figure in zip(columns, figures)}
    return table, head.split()[2].rstrip(".")


def broken_rules(kernels, exceptions=None):
    """Messages about kernels that break a rule, and about unneeded exceptions."""
    exceptions = MAY_HAVE if exceptions is None else exceptions
    broken, needed = defaultdict(list), set()
    for kernel in kernels:
        for column in RULES:
            if not kernel.counts[column]:
                continue
            allowed = [e for e in exceptions if e[0] == column and re.search(e[1], f"{kernel.op} {kernel.name}")]
            needed.update(allowed)
            if not allowed:
                broken[kernel.family, column].append(kernel)
    problems = []
    for (family, column), found in broken.items():
        worst = max(found, key=lambda k: k.counts[column])
        problems.append(f"{' '.join(family)}: {column} must be 0, is {worst.counts[column]} in {worst.name} and more than "
                        f"0 in {len(found)} instances")
    return problems + [f"no kernel needs the exception {e}: remove it" for e in exceptions if e not in needed]


def compare(table, now):
    """(What is worse now, what is better), as lines to print."""
    worse, better = [], []
    archs = {arch for _, _, arch in table}
    for family, line in now.items():
        name = " ".join(family)
        if family[2] not in archs:
            continue
        before = table.get(family, {"n": 0})
        if before["n"] != line["n"]:
            worse.append(f"{name}: {line['n']} instances, {before['n']} in the table")
            continue
        for column in CLASSES:
            if before[column] != line[column]:
                grew = line[column] > before[column]
                (better if grew == (column in GOOD) else worse).append(
                    f"{name}: {column} {before[column]} -> {line[column]}")
    return worse, better + [f"{' '.join(family)}: gone" for family in table if family[2] in archs and family not in now]


def check(kernels, compiler, text, exceptions=None):
    """Prints what breaks a rule or differs from the table `text`; returns whether something is wrong."""
    problems = broken_rules(kernels, exceptions)
    table, table_compiler = parse_table(text)
    better = []
    if compiler == table_compiler:
        worse, better = compare(table, summarize(kernels))
        problems += worse
    else:
        print(f"{TABLE} is for nvcc {table_compiler}, but this is {compiler}: only the rules are checked")
    for problem in problems:
        print(f"FAIL: {problem}")
    for line in better:
        print(f"better: {line}")
    if problems:
        print("tools/kernel_sass.py --filter=KERNEL shows the instances. Repair the kernel, or if it is worth it,")
    if problems or better:
        print(f"tools/kernel_sass.py --update bazel-bin/kernels/_nvcc rewrites {TABLE}; review the diff")
    print(f"{len(kernels)} kernels, {len(problems)} problems, {len(better)} lines better than the table")
    return bool(problems)


def print_kernels(kernels):
    print(f"{'op':<24} {'kernel':<90} {'arch':<7} " + " ".join(f"{column:>9}" for column in CLASSES))
    for k in kernels:
        print(f"{k.op:<24} {k.name:<90} {k.arch:<7} " + " ".join(f"{k.counts[column] or '.':>9}" for column in CLASSES))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the objects' folder")
    parser.add_argument("--filter", default="", help="only kernels whose op or name contains this")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--check", action="store_true", help="only print what breaks a rule or is worse than the table")
    mode.add_argument("--update", action="store_true", help="write the table")
    args = parser.parse_args()
    kernels, compiler = read(args.folder)
    if args.check:
        return int(check(kernels, compiler, TABLE.read_text()))
    if args.update:
        TABLE.write_text(format_table(summarize(kernels), compiler))
        return 0
    print_kernels([k for k in kernels if args.filter in f"{k.op} {k.name}"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
