#!/usr/bin/env python3
"""Do the tests notice a broken kernel?  bazel run //tools:mutate_kernels -- [--op=softmax] ...

Breaks the CUDA kernels in thousands of small ways, one at a time, and runs the op's tests on the
simulated GPU: a mutant that makes a test fail is killed; one that passes all of them survives, and is
either equivalent to the original or shows that a test is missing. In the device code of every .cu, .cuh and
header below kernels/ it

    drops a barrier          __syncthreads(); __syncwarp();
    shifts an index          x[i]  -> x[i + 1]
    flips a comparison       a < b -> a <= b,  a == b -> a != b
    swaps an operand         a - b -> b - a,  a + b -> a - b,  a * b -> a + b

All mutants are compiled at once, in a scratch copy (see tools/mutants.h). Prints each survivor that
kernels/surviving_mutants.md does not explain, as a line to paste there. Exits with 1 if there is one, or if fewer than
--least percent were killed.
"""
import argparse
import collections
import concurrent.futures
import functools
import itertools
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time

# source: the line, stripped. place: the mutant's number among those of its kind on the line, from
# 1.
Mutant = collections.namedtuple("Mutant", "number path line kind before place source")

EXPLAINED = "kernels/surviving_mutants.md"
OPERATORS = os.path.join(os.path.dirname(os.path.realpath(__file__)), "mutants.h")
COMPARISONS = {
    "<": ("<", "Less", ">"), "<=": ("<", "LessEqual", ">"), ">": ("<", "Greater", ">"),
    ">=": ("<", "GreaterEqual", ">"), "==": ("==", "Equal", "=="), "!=": ("!=", "NotEqual", "!="),
}
OP_SUITE = "//tests:op_cuda_test"
# A program and a filter of its tests.
MULTI_TENSOR = "//tests/kernels:tests MultiTensor*"
# Tests of code that the op suite does not reach: of all ops, of single ones, and of what they
# share.
KERNEL_TESTS = {
    None: "//tests/kernels:exact_memory_tests Cuda*:IndicesOnGpu*:*SpecialValues*",
    "adamw": MULTI_TENSOR,
    "attention": "//tests/kernels:flash_attention_test *",
    "global_norm": MULTI_TENSOR,
    "linear_cross_entropy": "//tests/kernels:tests *LinearCrossEntropyTest*",
    "grouped_linear": "//tests/kernels:tests *Bits.Of*",
    "kernels": "//tests/kernels:tests Strided*",  # kernels/strided.h
    "lion": MULTI_TENSOR,
    "matmul": "//tests/kernels:exact_memory_tests *PlainGemm*",
    "muon": MULTI_TENSOR,
    "rotary_embedding": "//tests/kernels:tests *RotaryInPlace*",
    "sgd": MULTI_TENSOR,
    "softmax_cross_entropy": "//tests/kernels:tests *CrossEntropyMemory*",
}
ARITHMETIC = {"+": "Plus", "-": "Minus", "*": "Times"}
OPERATOR = re.compile(r"(?<=[\w)\]}]) (<=|>=|==|!=|<|>|\+|-|\*) (?=[\w(\-!&*])")
INDEX = re.compile(r"(?<=[\w\]])\[([^\[\]]+)\](?!\()")
BARRIER = re.compile(r"\b(__syncthreads|__syncwarp)\(\);")
# Sizes, types and declarations of arrays, which cannot change at run time.
CONSTANT_INDEX = re.compile(r"^(k[A-Z]\w*|N|\d+|Tile::k\w+|Rows|Threads|sizeof\(.*\)|kPackSize<.*>)$")
STATIC_LINE = re.compile(r"constexpr|assert\(|\btemplate\b|\busing\b|__global__|__launch_bounds__"
                         r"|__shared__|DYN_SHARED|^\s*(//|#)|^\s*case\b|_mutant"
                         r"|\(&\w+\)\[|^\s*(const )?(?!return|else)[\w:<>]+ \w+\[")
# Per file, so that a line that does not compile changes no other file's numbers.
MAX_MUTANTS = 10000


def device_lines(text):
    """The numbers of the lines inside the bodies of device functions, from 0. Those of constexpr
    functions cannot ask which mutant runs."""
    lines = set()
    for match in re.finditer(r"//.*|(__global__|__device__|LS_HOST_DEVICE(?! constexpr))", text):
        if not match.group(1):
            continue
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
        # A one-line function has its braces on that line.
        lines.update(range(first, last + 1))
    return lines


def mutate(path, text, first_number, forbidden):
    """Returns (the text with all its mutants, the mutants). forbidden: lines that do not compile with them."""
    mutants, out = [], []
    device = device_lines(text)

    def add(line, kind, before):
        source = text.split("\n")[line].strip()
        place = 1 + sum(m[2:5] == (line + 1, kind, before) for m in mutants)
        number = first_number + len(mutants)
        mutants.append(Mutant(number, path, line + 1, kind, before, place, source))
        return number

    for line, source in enumerate(text.split("\n")):
        if line not in device or line in forbidden or STATIC_LINE.search(source):
            out.append(source)
            continue
        code, comment = (re.split(r"(?=\s*//)", source, maxsplit=1) + [""])[:2]

        def barrier(match):
            n = add(line, "barrier", match.group(0))
            return f"LS_MUTANT_BARRIER({n}, {match.group(1)}());"

        def index(match):
            inner = match.group(1)
            if CONSTANT_INDEX.match(inner) or inner[0] in "&=":
                return match.group(0)
            n = add(line, "index", f"[{inner}]")
            return f"[::mutant::Index<{n}>({inner})]"

        def operator(match):
            op = match.group(1)
            if op in COMPARISONS:
                left, tag, right = COMPARISONS[op]
                n = add(line, "comparison", op)
            else:
                left, tag, right = op, ARITHMETIC[op], op
                n = add(line, "operand", op)
            return f" {left} ::mutant::{tag}<{n}>{{}} {right} "

        # Operators first, since the other mutations insert some.
        code = OPERATOR.sub(operator, code)
        code = re.sub(INDEX, lambda m: m.group(0) if "mutant" in m.group(1) else index(m), code)
        out.append(BARRIER.sub(barrier, code) + comment)
    # The operators go into the file itself, so that nothing else is rebuilt.
    with open(OPERATORS, encoding="utf-8") as file:
        operators = file.read().replace("#pragma once", "")
    head = f"#ifndef LS_MUTANTS\n#define LS_MUTANTS\n{operators}\n#endif\n#line 1\n"
    return head + "\n".join(out) if mutants else text, mutants


def described(mutant):
    """A mutant as kernels/surviving_mutants.md lists it."""
    nth = f" ({mutant.place})" if mutant.place > 1 else ""
    return f"- `{mutant.path}`: {mutant.kind} `{mutant.before}`{nth} in `{mutant.source}`"


def explained(root):
    """The lines of kernels/surviving_mutants.md that list a mutant."""
    with open(os.path.join(root, EXPLAINED), encoding="utf-8") as file:
        return {line.rstrip() for line in file if line.startswith("- `kernels/")}


def run(command, cwd, **kwargs):
    return subprocess.run(command, cwd=cwd, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, errors="replace", check=False, **kwargs)


def has_device_code(path):
    if not path.endswith(".h"):
        return path.endswith((".cu", ".cuh"))
    with open(path, encoding="utf-8") as file:
        return bool(device_lines(file.read()))


def sources_below(root):
    found = []
    for folder, _, names in os.walk(os.path.join(root, "kernels")):
        found += [os.path.relpath(os.path.join(folder, n), root) for n in names
                  if n.endswith((".cu", ".cuh", ".h"))]
    return sorted(found)


def kernel_files(root):
    """What has device code: .cu, .cuh, and headers whose functions the CPU has, too."""
    return [path for path in sources_below(root) if has_device_code(os.path.join(root, path))]


def ops_of(root, path):
    """The ops whose tests run a file's code, its own first: those of the files that include it, or for
    a .cu, include a header of its folder other than the op's own."""
    folder = os.path.basename(os.path.dirname(path))
    own, wanted = [], {path}
    if path.endswith(".cu"):
        own = [folder]
        with open(os.path.join(root, path), encoding="utf-8") as file:
            wanted = set(re.findall(f'"(kernels/{folder}/(?!{folder}\\.h)\\w+\\.h)"', file.read()))
    ops, grown = set(), True
    while grown:
        grown = False
        for other in sources_below(root):
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
        for i, (path, text) in enumerate(sources.items()):
            mutated, new = mutate(path, text, MAX_MUTANTS * i + 1, forbidden[path])
            mutants += new
            with open(os.path.join(scratch, path), "w", encoding="utf-8") as file:
                file.write(mutated)
        print(f"building {len(mutants)} mutants of {len(sources)} files", flush=True)
        result = run(["bazel", "build", "-k", f"--jobs={args.jobs}", "--noshow_progress",
                      "--compilation_mode=fastbuild",  # with assertions
                      OP_SUITE,
                      *sorted({test.split()[0] for test in KERNEL_TESTS.values()})], scratch)
        if result.returncode == 0:
            return mutants
        # nvcc names the line of an error, and the lines from which a template is instantiated.
        bad = set(re.findall(r"(kernels/[\w/]+\.(?:cuh?|h))\((\d+)\): error", result.stdout))
        bad |= {(path, line) for line, path in
                re.findall(r"at line (\d+) of (kernels/[\w/]+\.(?:cuh?|h))", result.stdout)}
        before = sum(map(len, forbidden.values()))
        for path, line in bad:
            if path in forbidden:
                forbidden[path].add(int(line) - 1)
        if sum(map(len, forbidden.values())) == before:
            sys.exit(result.stdout[-8000:])
    sys.exit("the mutants do not compile")


def command_of(scratch, test, ops):
    """The command that runs a test; of the op suite, only the cases of these ops."""
    program, _, tests = test.partition(" ")
    command = [os.path.join(scratch, "bazel-bin", program[2:].replace(":", "/"))]
    if test == OP_SUITE:
        command.append("--device=sim")
        tests = ":".join(f"{op}.*" for op in ops)
    return [*command, f"--gtest_filter={tests}"]


def passes(scratch, args, test, ops, number, seconds):
    """True if a test passes."""
    # Without the caching allocator each tensor ends less than 16 bytes before a guard page; with
    # hundreds of tensors this takes too long.
    environment = dict(os.environ, CUDASIM_ENVREG0=str(number), LOCKSTEP_TEST_ALL="1", CUDASIM_LEAKS="off",
                       CUDASIM_RACES=str(int(args.races)), CUDASIM_ALIGNMENT="16",
                       LOCKSTEP_CUDA_ALLOCATOR="caching" if test == MULTI_TENSOR else "none")
    command = [*command_of(scratch, test, ops), "--gtest_fail_fast", "--gtest_brief=1"]
    try:
        return run(command, scratch, env=environment, timeout=seconds).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def earlier_results(path, mutants):
    """An earlier run's file: which of these mutants it killed, and its results for other mutants.
    Numbers and lines may have changed; if several mutants read alike, all must have been killed."""
    if not path or not os.path.exists(path):
        return set(), []
    with open(path, encoding="utf-8") as file:
        results = [json.loads(line) for line in file]
    alike = collections.Counter(map(described, mutants))
    killed, others = collections.Counter(), []
    for result in results:
        text = described(Mutant(**{f: result[f] for f in Mutant._fields}))
        if text not in alike:
            others.append(result)
        elif not result["survived"]:
            killed[text] += 1
    return {m for m in mutants if killed[described(m)] >= alike[described(m)]}, others


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--op", action="append", help="an op's folder, 'cuda' or 'kernels' for shared "
                        "code, or a file such as kernels/cuda/norm.cuh; may be repeated (all)")
    parser.add_argument("--sample", type=int, default=0, help="test this many mutants of each file (all)")
    parser.add_argument("--seed", type=int, default=1, help="the sample's seed")
    parser.add_argument("--races", action="store_true", help="search kernels for races, too, which takes longer")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="the build's parallel jobs")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="mutants tested in parallel")
    parser.add_argument("--least", type=float, default=95, help="percentage that must be killed")
    parser.add_argument("--results", help="keep the results here, one JSON object per line; what was "
                        "killed according to it is not tested again")
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
        if not args.op or {path, os.path.basename(os.path.dirname(path))} & set(args.op):
            with open(os.path.join(root, path), encoding="utf-8") as file:
                sources[path] = file.read()
    mutants = build(scratch, args, sources, {path: set() for path in sources})

    chosen = mutants
    if args.sample:
        chosen, rng = [], random.Random(args.seed)
        for path in sources:
            of_file = [m for m in mutants if m.path == path]
            chosen += sorted(rng.sample(of_file, min(args.sample, len(of_file))))
    done, others = earlier_results(args.results, chosen)
    left = [m for m in chosen if m not in done]

    @functools.cache
    def seconds(test, op):
        if not run([*command_of(scratch, test, [op]), "--gtest_list_tests"], scratch).stdout.strip():
            sys.exit(f"{test} {op} names no test: where has it moved?")
        begin = time.time()
        if not passes(scratch, args, test, [op], 0, 3600):
            sys.exit(f"{test} {op} fails without a mutant")
        return time.time() - begin

    # Mutants of shared code nearly always die in the tests of two ops, the code's own and the
    # quickest; the other ops' tests come last.
    stages = {}
    for path in {m.path for m in left}:
        own = os.path.basename(os.path.dirname(path))
        ops = sorted(ops_of(root, path), key=lambda op: (op != own, seconds(OP_SUITE, op)))
        kernel = sorted({KERNEL_TESTS[op] for op in (None, own, *ops[:2]) if op in KERNEL_TESTS})
        parts = [(OP_SUITE, ops[:2]), *((test, [""]) for test in kernel), (OP_SUITE, ops[2:])]
        stages[path] = [(test, part, 30 + 5 * args.workers * sum(seconds(test, op) for op in part))
                        for test, part in parts if part]

    def survives(mutant):
        return all(passes(scratch, args, test, ops, mutant.number, limit)
                   for test, ops, limit in stages[mutant.path])

    known = explained(root)
    survivors = unexplained = 0
    with concurrent.futures.ThreadPoolExecutor(args.workers) as pool, \
            open(args.results or os.devnull, "w", encoding="utf-8") as file:
        for result in others:
            print(json.dumps(result), file=file)
        tested = zip(left, pool.map(survives, left))
        for mutant, survived in itertools.chain(((m, False) for m in sorted(done)), tested):
            survivors += survived
            print(json.dumps({**mutant._asdict(), "survived": survived}), file=file, flush=True)
            if survived and described(mutant) not in known:
                unexplained += 1
                print(f"survived, line {mutant.line}:\n{described(mutant)}", flush=True)
            elif not survived and described(mutant) in known:
                print(f"killed, though {EXPLAINED} lists it:\n{described(mutant)}", flush=True)
    share = 100 - 100 * survivors / max(1, len(chosen))
    print(f"{len(chosen) - survivors} of {len(chosen)} mutants killed, {share:.1f}%; of the other"
          f" {survivors}, {survivors - unexplained} are explained in {EXPLAINED}")
    sys.exit(share < args.least or unexplained > 0)


if __name__ == "__main__":
    main()
