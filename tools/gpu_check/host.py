"""Checks that this machine has what the bundle needs; a module of gpu_check."""
import json
import os
import platform
import re
import shlex
import subprocess
import sys

from runner import HERE, Failed

# The first driver of each CUDA version; those of one major version are compatible.
_DRIVER = {12: 525, 13: 580}


def describe_machine(simulated):
    """The first GPU, its driver and the number of GPUs, according to nvidia-smi; results hold for all machines of a
    kind."""
    if simulated:
        return {"name": "simulated GPU", "kind": "simulated GPU", "gpus": 2}
    query = ["nvidia-smi", "--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise Failed(f"nvidia-smi cannot be run: {error}", fix=_no_gpu()) from None
    rows = [[field.strip() for field in line.split(",")] for line in done.stdout.splitlines()]
    if done.returncode != 0 or not rows or any(len(row) != 3 for row in rows):
        raise Failed(f"nvidia-smi names no GPU: {done.stdout.strip()}", fix=_no_gpu())
    name, driver, capability = rows[0]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = len(rows) if visible is None else min(len(rows), len([v for v in visible.split(",") if v]))
    return {"name": f"{name}, driver {driver}", "kind": f"{name}, driver {numbers(driver)[0]}", "gpus": gpus,
            "driver": driver, "capability": capability}


def _no_gpu():
    return ("install NVIDIA's driver, or start the container with its GPUs (docker run --gpus=all); --simulated "
            "rehearses without a GPU, with a bundle built without --config=cuda")


def read_bundle():
    """The description of the bundle that tools/make_bundle.sh wrote."""
    path = HERE / "bundle.json"
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise Failed(f"{path} cannot be read: {error}", fix="unpack the whole tarball again") from None


def check_host(simulated, bundle, machine, environment):
    """Everything that is missing, as pairs of the problem and its fix; `machine` is None where no GPU was found."""
    problems = []
    wanted = "simulated" if simulated else "cuda"
    if bundle["backend"] != wanted:
        how = "with --config=cuda" if bundle["backend"] == "cuda" else "without --config=cuda"
        problems.append((f"this bundle was built {how}",
                         "run it without --simulated, or build one without --config=cuda" if simulated else
                         "build one with --config=cuda, or rehearse with --simulated"))
    problems += _processor()
    problems += library_problems(listed_libraries(environment, bundle), bundle)
    if machine and not simulated and bundle["backend"] == "cuda":
        problems += _gpu(bundle, machine)
    return problems


def _processor():
    if platform.machine() != "x86_64":
        return [(f"the processor is {platform.machine()}; the bundle is for x86-64", "build it on such a machine")]
    try:
        with open("/proc/cpuinfo") as file:
            flags = set(re.search(r"^flags\s*:(.*)$", file.read(), re.MULTILINE)[1].split())
    except (OSError, TypeError):
        return []
    missing = {"avx2", "fma", "bmi2"} - flags
    if not missing:
        return []
    return [(f"the processor has no {', '.join(sorted(missing))}", "use one with AVX2 and FMA, from 2013 or later")]


def cuda_problems(environment):
    """Why CUDA does not start for the programs, where nvidia-smi names a GPU and no library is missing: a toolkit's stub in
    place of the driver's library, say, or a fabric manager that does not run."""
    try:
        done = subprocess.run([HERE / "libexec" / "op_test", "--device=cuda", "--gtest_list_tests"], env=environment,
                              text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [(f"CUDA does not start: {error}", "see what dmesg and nvidia-smi say of the GPU")]
    if done.returncode == 0:
        return []
    said = done.stderr.strip().removeprefix("op_test: ")
    return [(said or f"op_test ended with {done.returncode}", "until then, no program of the bundle can use the GPU")]


def numbers(version):
    return [int(n) for n in re.findall(r"\d+", version)]


def listed_libraries(environment, bundle):
    """What the dynamic linker says about the programs' libraries, and those that they load, as ldd prints it."""
    program = HERE / "libexec" / "lockstep"
    try:
        listed = subprocess.run([program], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                env=dict(environment, LD_TRACE_LOADED_OBJECTS="1", LD_WARN="yes",
                                         LD_PRELOAD=bundle["loads"])).stdout
        return re.sub(r"ERROR: ld.so: object '(.*?)' from LD_PRELOAD .*", r"\1 => not found", listed)
    except FileNotFoundError:
        if program.exists():
            return "libc.so.6 => not found"  # glibc's dynamic linker is missing
        raise Failed(f"there is no {program}", fix="unpack the whole tarball again") from None
    except OSError as error:
        raise Failed(f"{program} cannot be run: {error}", fix="unpack the tarball where programs may run") from None


def library_problems(listed, bundle):
    """The problems in the output of listed_libraries."""
    # "/lib/libc.so.6: version `GLIBC_2.34' not found (required by ...)"
    old = sorted(set(re.findall(r"version `((?:GLIBC|GLIBCXX|CXXABI|GCC)_[\d.]+)' not found", listed)))
    missing = sorted(set(re.findall(r"(\S+) => not found", listed)))
    problems = []
    if old or "libc.so.6" in missing:
        problems.append((f"the system is older than the bundle: {', '.join(old) or 'glibc'} not found",
                         f"use a system with glibc {bundle['glibc']} and the libstdc++ of GCC 12 (GLIBCXX_"
                         f"{bundle['glibcxx']}) or later, such as Debian 12 or Ubuntu 22.04, or build it on yours"))
    of_system = [name for name in missing if name.startswith(("libstdc++", "libgcc_s"))]
    if of_system:
        problems.append((f"{', '.join(of_system)} not found", "apt-get install libstdc++6"))
    of_cuda = [name for name in missing if name.startswith(("libcu", "libnv"))]
    if of_cuda:
        cuda = bundle["cuda"]
        problems.append((
            f"{', '.join(of_cuda)} of CUDA {cuda} not found",
            f"unpack lockstep-cuda.tar.gz, which tools/make_cuda_libraries.sh packs where the bundle was built, in "
            f"{HERE.parent}; or apt-get install libcublas-{cuda}-0 (NVIDIA's packages); or pip install nvidia-cublas"
            f"{'-cu12' if cuda == 12 else ''}, which PyTorch for CUDA {cuda} brings along, and name that python by "
            "--python; or add their folder to LD_LIBRARY_PATH"))
    others = [name for name in missing if name not in of_system + of_cuda + ["libc.so.6"]]
    if others:
        problems.append((f"{', '.join(others)} not found", "unpack the whole tarball again"))
    return problems


def _gpu(bundle, machine):
    problems = []
    driver = _DRIVER.get(bundle["cuda"], 0)
    if numbers(machine["driver"])[0] < driver:
        problems.append((f"the GPU's driver is {machine['driver']}; CUDA {bundle['cuda']} needs {driver} or later",
                         "update the driver, or build the bundle with an earlier CUDA toolkit"))
    if not has_code_for(machine["capability"], bundle["architectures"]):
        problems.append((f"{machine['name']} has compute capability {machine['capability']}; the bundle is for "
                         f"{bundle['architectures']}",
                         "build it with --//tools/bazel:cuda_archs=sm_NN of that GPU; 8.0 (A100) is the least that "
                         "the kernels can do with"))
    return problems


def has_code_for(capability, architectures):
    """Whether a GPU runs what was compiled for "compute_80:sm_80,compute_80;sm_90a"."""
    gpu = int(capability.replace(".", ""))
    for kind, number, suffix in re.findall(r"(sm|compute)_(\d+)([af]?)", re.sub(r"compute_\w+\s*:", "", architectures)):
        number = int(number)
        if kind == "sm" and (gpu == number or not suffix and gpu // 10 == number // 10 and gpu >= number):
            return True
        if kind == "compute" and not suffix and gpu >= number:  # PTX, which the driver can compile
            return True
    return False


def _folders_of(python):
    """The folders with CUDA's libraries of the interpreter's packages."""
    ask = "import glob, sys; [print(f) for s in sys.path for f in glob.glob(s + '/nvidia/*/lib')]"
    try:
        return subprocess.run([python, "-c", ask], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              text=True).stdout.split()
    except OSError as error:
        raise Failed(f"--python={python} cannot be run: {error}", fix="name an interpreter that imports torch") from None


def find_cuda(python, bundle):
    """The environment in which programs find CUDA's libraries, cuDNN and NCCL: those of lockstep-cuda.tar.gz, unpacked
    beside the bundle; else the system's; else those of PyTorch's packages or of the toolkit."""
    of_python = _folders_of(python)  # first: a wrong --python is told, also where it is not needed here
    environment = dict(os.environ)
    before = [folder for folder in environment.get("LD_LIBRARY_PATH", "").split(":") if folder]
    beside = HERE / "cuda"
    if beside.exists():
        # cuDNN looks for its parts there first, and they must be of one version.
        environment["LD_LIBRARY_PATH"] = ":".join(dict.fromkeys([str(beside), *before]))
        return environment
    load = "import ctypes; [ctypes.CDLL(name) for name in ('libcudnn.so.9', 'libnccl.so.2')]"
    if "not found" not in listed_libraries(environment, bundle):
        if subprocess.run([sys.executable, "-c", load], stderr=subprocess.DEVNULL).returncode == 0:
            return environment
    toolkit = os.environ.get("CUDA_HOME", "/usr/local/cuda") + "/lib64"
    environment["LD_LIBRARY_PATH"] = ":".join([*before, *of_python, toolkit])
    return environment


_TO_SOURCE = "# To source; written by gpu_check: the bundle's programs, and the libraries that it found for them.\n"


def write_environment(path, environment):
    """A file to source, after which the programs can be called by name and find what gpu_check found."""
    variables = [name for name in ["LD_LIBRARY_PATH"] if environment.get(name)]
    try:
        if path.exists() and not path.read_text().startswith(_TO_SOURCE):
            raise Failed(f"{path} was not written by gpu_check", fix="choose a --out in another folder")
        path.write_text(_TO_SOURCE + f"export PATH={shlex.quote(str(HERE / 'bin'))}:$PATH\n" +
                        "".join(f"export {name}={shlex.quote(environment[name])}\n" for name in variables))
    except (OSError, ValueError) as error:
        raise Failed(f"{path} cannot be written: {error}", fix="choose a --out in another folder") from None
