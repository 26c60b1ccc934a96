"""Which libraries a program of the bundle has mapped, which it would find, and which of their kernels it used; a module
of gpu_check."""
import json
import os
import re
import subprocess
import sys

from host import numbers
from runner import Failed

_OF_CUDA = re.compile(r"lib(cublas|cudart|cudnn|nccl|cuda|nvrtc|nvJitLink|nvidia|dnnl)[\w.+-]*\.so[\w.]*$")
# A program that prints each library's version and path; the CUDA runtime is linked into the
# programs.
_ASK = """
import ctypes, json, sys
asked = {}
for name in sys.argv[1:]:
    try:
        library = ctypes.CDLL(name)
    except OSError as error:
        asked[name] = {"error": str(error)}
        continue
    number = ctypes.c_int(0)
    for function, returns in (("cublasLtGetVersion", True), ("cudnnGetVersion", True), ("ncclGetVersion", False)):
        if hasattr(library, function):
            call = getattr(library, function)
            call.restype = ctypes.c_size_t
            number.value = call() if returns else call(ctypes.byref(number)) or number.value
    mapped = {line.split()[-1] for line in open("/proc/self/maps") if "/" + name.split("/")[-1] in line}
    asked[name] = {"version": number.value, "path": min(mapped, default=name)}
print(json.dumps(asked))
"""
LOADED_LATER = ["libcudnn.so.9", "libnccl.so.2"]


def mapped(process):
    """The CUDA library files that the process has mapped, by name."""
    with open(f"/proc/{process}/maps") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if len(line.split(maxsplit=5)) == 6}
    return {os.path.basename(path): path for path in sorted(paths) if _OF_CUDA.search(path)}


def versions(names, environment):
    """The versions and paths of these libraries, given by path or name, in the programs' environment."""
    done = subprocess.run([sys.executable, "-c", _ASK, *names], env=environment, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=60)
    if done.returncode != 0:
        raise Failed(f"the libraries cannot be asked for their versions: {done.stderr.strip()[-300:]}", done.stderr)
    return json.loads(done.stdout)


def found(environment):
    """The libraries that programs load on demand, if found in this environment, with version and path."""
    return {name: what for name, what in versions(LOADED_LATER, environment).items() if "error" not in what}


def expected_attention(machine, environment):
    """How the names of attention's kernels in bf16 must begin, according to kernels/README.md."""
    forced = environment.get("LOCKSTEP_ATTENTION", "auto")
    if forced != "auto":
        return "cuDNN" if forced == "cudnn" else forced
    cudnn = found(environment).get("libcudnn.so.9", {"version": 0})["version"]
    capable = numbers(machine.get("capability", "0"))[0] in (8, 9)
    return "cuDNN" if capable and cudnn >= 91002 else "flash"


def check_attention(choices, expected):
    """Raises Failed if any attention used other kernels; returns what to record of all choices."""
    wrong = [c for c in choices if c["op"].startswith("attention_") and not c["kernel"].startswith(expected)]
    if wrong:
        c = wrong[0]
        raise Failed(f"{c['op']} of {c['problem']} used {c['kernel']}, not {expected}: "
                     f"{c['why_slow'] or 'it does not say why'}",
                     "\n".join(json.dumps(c) for c in choices),
                     fix="the message gives the reason; LOCKSTEP_ATTENTION=flash trains without cuDNN")
    return {"choices": len(choices), "slow": [c for c in choices if c["why_slow"]]}
