#!/usr/bin/env python3
"""Do the tests notice a broken kernel?  bazel run //tools:mutate_kernels -- [--op=softmax] ...

Breaks the CUDA kernels in thousands of small ways, one at a time, and runs the op's tests on the
simulated GPU: a mutant that makes a test fail is killed, one that passes all of them survives, and is
either the same program in other words or a missing test. In device code of every .cu and .cuh below
kernels/ it

    drops a barrier          __syncthreads(); __syncwarp();
    shifts an index          x[i]  -> x[i + 1]
    flips a comparison       a < b -> a <= b,  a == b -> a != b
    swaps an operand         a - b -> b - a,  a + b -> a - b,  a * b -> a + b

All mutants are compiled at once, in a scratch copy: tools/mutants.h says how. Prints each survivor
with its line; exits with 1 if fewer than --least percent were killed.
"""
import argparse
import collections
import concurrent.futures
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time

Mutant = collections.namedtuple("Mutant", "number path line kind before after")

OPERATORS = os.path.join(os.path.dirname(os.path.realpath(__file__)), "mutants.h")
COMPARISONS = {
    "<": ("<", "Less", ">"), "<=": ("<", "LessEqual", ">"), ">": ("<", "Greater", ">"),
    ">=": ("<", "GreaterEqual", ">"), "==": ("==", "Equal", "=="), "!=": ("!=", "NotEqual", "!="),
}
TESTS = ["//tests:op_cuda_test", "//tests/kernels:cuda_kernels_test"]
ARITHMETIC = {"+": "Plus", "-": "Minus", "*": "Times"}
OPERATOR = re.compile(r"(?<=[\w)\]}]) (<=|>=|==|!=|<|>|\+|-|\*) (?=[\w(\-!&*])")
INDEX = re.compile(r"(?<=[\w\]])\[([^\[\]]+)\](?!\()")
BARRIER = re.compile(r"\b(__syncthreads|__syncwarp)\(\);")
# Sizes and types, where nothing can be changed at run time.
CONSTANT_INDEX = re.compile(r"^(k[A-Z]\w*|N|\d+|Tile::k\w+|Rows|Threads|sizeof\(.*\)|kPackSize<.*>)$")
STATIC_LINE = re.compile(r"constexpr|static_assert|\btemplate\b|\busing\b|__global__|__launch_bounds__"
                         r"|SHARED_ARRAY|DYN_SHARED|^\s*(//|#)|^\s*case\b|_mutant")


def device_lines(text):
    """The numbers of the lines inside the bodies of device functions, from 0."""
    lines = set()
    for match in re.finditer(r"__global__|__device__", text):
        at, parentheses = match.end(), 0
        while at < len(text) and not (text[at] in "{;" and parentheses == 0):
            parentheses += {"(": 1, ")": -1}.get(text[at], 0)
            at += 1
        if at == len(text) or text[at] == ";":
            continue
        begin, depth = at, 0
        while True:
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            at += 1
            if depth == 0:
                break
        first, last = text.count("\n", 0, begin), text.count("\n", 0, at)
        # A function of one line is in braces on that line.
        lines.update(range(first, last + 1))
    return lines


def mutate(path, text, first_number, forbidden):
    """The text with all its mutants, and these. forbidden: lines that do not compile with them."""
    mutants, out = [], []
    device = device_lines(text)

    def add(line, kind, before, after):
        mutants.append(Mutant(first_number + len(mutants), path, line + 1, kind, before, after))
        return mutants[-1].number

    for line, source in enumerate(text.split("\n")):
        if line not in device or line in forbidden or STATIC_LINE.search(source):
            out.append(source)
            continue
        code, comment = (re.split(r"(?=\s*//)", source, maxsplit=1) + [""])[:2]

        def barrier(match):
            n = add(line, "barrier", match.group(0), "")
            return f"LS_MUTANT_BARRIER({n}, {match.group(1)}());"

        def index(match):
            inner = match.group(1)
            if CONSTANT_INDEX.match(inner) or inner[0] in "&=":
                return match.group(0)
            n = add(line, "index", f"[{inner}]", f"[{inner} + 1]")
            return f"[::mutant::Index<{n}>({inner})]"

        def operator(match):
            op = match.group(1)
            if op in COMPARISONS:
                left, tag, right = COMPARISONS[op]
                n = add(line, "comparison", op, "flipped")
            else:
                left, tag, right = op, ARITHMETIC[op], op
                n = add(line, "operand", op, "swapped")
            return f" {left} ::mutant::{tag}<{n}>{{}} {right} "

        # Operators first: what the others write has some of its own.
        code = OPERATOR.sub(operator, code)
        code = re.sub(INDEX, lambda m: m.group(0) if "mutant" in m.group(1) else index(m), code)
        out.append(BARRIER.sub(barrier, code) + comment)
    # The operators go into the file itself, so that nothing else is built anew.
    with open(OPERATORS, encoding="utf-8") as file:
        operators = file.read().replace("#pragma once", "")
    head = f"#ifndef LS_MUTANTS\n#define LS_MUTANTS\n{operators}\n#endif\n#line 1\n"
    return head + "\n".join(out) if mutants else text, mutants


def run(command, cwd, **kwargs):
    return subprocess.run(command, cwd=cwd, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, errors="replace", check=False, **kwargs)


def kernel_files(root):
    found = []
    for folder, _, names in os.walk(os.path.join(root, "kernels")):
        found += [os.path.relpath(os.path.join(folder, n), root) for n in names
                  if n.endswith((".cu", ".cuh"))]
    return sorted(found)


def ops_of(root, path):
    """The ops whose tests run a file's code, its own first: those of the files that include it, or,
    of a .cu, a header of its folder beside the op's own."""
    folder = os.path.basename(os.path.dirname(path))
    own, wanted = [], {path}
    if path.endswith(".cu"):
        own = [folder]
        with open(os.path.join(root, path), encoding="utf-8") as file:
            wanted = set(re.findall(f'"(kernels/{folder}/(?!{folder}\\.h)\\w+\\.h)"', file.read()))
    ops, grown = set(), True
    while grown:
        grown = False
        for other in kernel_files(root):
            with open(os.path.join(root, other), encoding="utf-8") as file:
                text = file.read()
            if other not in wanted and any(f'"{w}"' in text for w in wanted):
                wanted.add(other)
                grown = True
                if other.endswith(".cu"):
                    ops.add(os.path.basename(os.path.dirname(other)))
    return own + sorted(ops - set(own))


def build(scratch, args, sources, forbidden):
    """Writes all mutants and builds the tests, leaving out lines that do not compile."""
    for _ in range(12):
        mutants = []
        for path, text in sources.items():
            mutated, new = mutate(path, text, len(mutants) + 1, forbidden[path])
            mutants += new
            with open(os.path.join(scratch, path), "w", encoding="utf-8") as file:
                file.write(mutated)
        print(f"building {len(mutants)} mutants of {len(sources)} files", flush=True)
        ops = "|".join(sorted({op for path in sources for op in ops_of(scratch, path)}))
        flags = f".*_cudasim/({ops})/.*@-w,-fsanitize=bounds,-fsanitize-undefined-trap-on-error"
        config = [f"--config={args.config}"] if args.config else []
        result = run(["bazel", "build", "-k", f"--jobs={args.jobs}", "--noshow_progress",
                      f"--per_file_copt={flags}", *config, *TESTS], scratch)
        if result.returncode == 0:
            return mutants
        bad = set(re.findall(r"(kernels/[\w/]+\.cuh?):(\d+):\d+:\s+(?:error|  required)", result.stdout))
        before = sum(map(len, forbidden.values()))
        for path, line in bad:
            if path in forbidden:
                forbidden[path].add(int(line) - 1)
        if sum(map(len, forbidden.values())) == before:
            sys.exit(result.stdout[-8000:])
    sys.exit("the mutants do not compile")


def test(scratch, ops, number, seconds):
    """True if the tests of the ops, and those of what the op suite does not reach, pass."""
    environment = dict(os.environ, LOCKSTEP_MUTANT=str(number), LOCKSTEP_CUDA_ALLOCATOR="none",
                       CUDASIM_LEAKS="off")
    filters = ":".join(f"{op}.*" for op in ops)
    programs = [os.path.join(scratch, "bazel-bin", t[2:].replace(":", "/")) for t in TESTS]
    for arguments in ([programs[0], "--device=sim", f"--gtest_filter={filters}"], programs[1:]):
        try:
            result = run([*arguments, "--gtest_fail_fast", "--gtest_brief=1"], scratch,
                         env=environment, timeout=seconds)
        except subprocess.TimeoutExpired:
            return False
        if result.returncode:
            return False
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--op", action="append", help="an op's folder, or 'cuda' for what is shared; "
                        "may be repeated (all)")
    parser.add_argument("--sample", type=int, default=0, help="test so many mutants of each file (all)")
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    parser.add_argument("--config", default="", help="of the build: with memory (ASan and UBSan) a loop "
                        "that runs one element too far over registers shows, too")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="of the build")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="mutants tested at a time")
    parser.add_argument("--least", type=float, default=95, help="percent that must be killed")
    parser.add_argument("--json", help="write all results here")
    args = parser.parse_args()
    root = os.environ.get("BUILD_WORKSPACE_DIRECTORY",
                          os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    scratch = os.path.join(tempfile.gettempdir(), f"lockstep_mutants_{os.getuid()}")
    shutil.rmtree(scratch, ignore_errors=True)
    os.makedirs(scratch)
    files = run(["git", "ls-files", "-co", "--exclude-standard", "-z"], root).stdout.split("\0")
    for name in filter(None, files):
        if os.path.isfile(os.path.join(root, name)):
            os.makedirs(os.path.dirname(os.path.join(scratch, name)), exist_ok=True)
            shutil.copy2(os.path.join(root, name), os.path.join(scratch, name))
    sources = {}
    for path in kernel_files(root):
        if not args.op or os.path.basename(os.path.dirname(path)) in args.op:
            with open(os.path.join(root, path), encoding="utf-8") as file:
                sources[path] = file.read()
    mutants = build(scratch, args, sources, {path: set() for path in sources})

    chosen = mutants
    if args.sample:
        chosen, rng = [], random.Random(args.seed)
        for path in sources:
            of_file = [m for m in mutants if m.path == path]
            chosen += sorted(rng.sample(of_file, min(args.sample, len(of_file))))
    # What many ops share dies in the tests of the first two nearly always; the others have the last word.
    stages = {}
    for path in sources:
        ops = tuple(ops_of(root, path))
        stages[path] = [part for part in (ops[:2], ops[2:]) if part]
    limits = {}
    for ops in sorted({part for parts in stages.values() for part in parts}):
        begin = time.time()
        if not test(scratch, ops, 0, 3600):
            sys.exit(f"the tests of {', '.join(ops)} fail without a mutant")
        limits[ops] = 10 * args.workers * (time.time() - begin) + 30

    def survives(mutant):
        return all(test(scratch, ops, mutant.number, limits[ops]) for ops in stages[mutant.path])

    results = []
    with concurrent.futures.ThreadPoolExecutor(args.workers) as pool:
        for mutant, survived in zip(chosen, pool.map(survives, chosen)):
            results.append({**mutant._asdict(), "survived": survived})
            if survived:
                line = sources[mutant.path].split("\n")[mutant.line - 1].strip()
                print(f"survived: {mutant.path}:{mutant.line}: {mutant.kind} {mutant.before}"
                      f" {mutant.after}\n    {line}", flush=True)
    killed = sum(not r["survived"] for r in results)
    share = 100 * killed / max(1, len(results))
    print(f"{killed} of {len(results)} mutants killed, {share:.1f}%")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)
    sys.exit(share < args.least)


if __name__ == "__main__":
    main()
