"""The CUDA toolkit as the repository @cuda: the system's, or else nvcc from PyPI.

It can always be declared. It is looked for, and fetched, when a target needs it, which only those do that are
made by nvcc: a build for the CPU does not. Where there is neither, such targets are incompatible: named, they
are an error, and of "//..." Bazel skips them.
"""

_BUILD = """
load("@{lockstep}//tools/bazel:cuda_toolkit.bzl", "cuda_toolkit")

package(default_visibility = ["//visibility:public"])

# Every platform has it, or none.
constraint_setting(
    name = "nvcc",
    default_constraint_value = {default},
)

constraint_value(
    name = "nvcc_is_there",
    constraint_setting = ":nvcc",
)

cuda_toolkit(
    name = "toolkit",
    nvcc = "{nvcc}",
    target_compatible_with = [":nvcc_is_there"],
    version = "version.txt",
)

# The headers that host code can include. nvcc itself reads the toolkit's folder.
cc_library(
    name = "headers",
    hdrs = glob(
        [
            "include/*.h",
            "include/*.hpp",
            "include/cccl/nv/**",
            "include/crt/**",
            "include/nv/**",
            "include/nvtx3/**",
        ],
        allow_empty = True,
    ),
    data = [":toolkit"],
    includes = [
        "include",
        "include/cccl",
    ],
)

cc_library(
    name = "cudart",
    linkopts = [
        "-L{lib}",
        "-lcudart_static",
        "-ldl",
        "-lpthread",
        "-lrt",
    ],
    deps = [":headers"],
)

# Where programs find the toolkit's libraries when they load them.
cc_library(
    name = "run_path",
    data = [":toolkit"],
    linkopts = ["-Wl,-rpath,{lib}"],
)

[
    cc_library(
        name = name,
        linkopts = [
            "-L{lib}",
            "-Wl,-rpath,{lib}",
        ] + ["-l" + library for library in libraries],
        deps = [":cudart"],
    )
    for name, libraries in {{
        "cublas": ["cublasLt"],
        "cudnn": ["cudnn"],
        "nccl": ["nccl"],
    }}.items()
]
"""

_SYSTEM = ["/usr/local/cuda", "/usr", "/opt/cuda"]

def _system_toolkit(ctx):
    for home in [ctx.os.environ.get("CUDA_HOME", "")] + _SYSTEM:
        if home and ctx.path(home + "/bin/nvcc").exists:
            return home
    return None

def _pypi_toolkit(ctx):
    """Its folder, outside of Bazel's, so that clones share it and a restarted server does not fetch it; else why not."""
    python, user = ctx.which("python3"), ctx.os.environ.get("HOME", "")
    if not python or not user:
        return None, "python3 and $HOME are needed to fetch it from PyPI"
    home = user + "/.cache/lockstep-nvcc"
    ctx.report_progress("fetching nvcc from PyPI (105 MB), unless " + home + " has it")
    fetched = ctx.execute([
        python,
        ctx.path(Label("//tools/bazel:fetch_nvcc.py")),
        home,
        ctx.path(Label("//tools/bazel:nvcc_requirements.txt")),
    ], timeout = 1800)
    if fetched.return_code != 0:
        return None, "it could not be fetched from PyPI (%s)" % fetched.stderr.strip()
    return home, None

def _toolkit(ctx):
    which = ctx.os.environ.get("LOCKSTEP_NVCC", "")
    if which not in ["", "system", "pypi", "none"]:
        fail("LOCKSTEP_NVCC is '%s'; it must be system, pypi, none, or empty: the system's or else PyPI's" % which)
    if which == "none":
        return None, "LOCKSTEP_NVCC=none"
    if which != "pypi":
        home = _system_toolkit(ctx)
        if home or which == "system":
            return home, "there is no bin/nvcc in $CUDA_HOME, " + ", ".join(_SYSTEM)
    return _pypi_toolkit(ctx)

def _cuda_repository_impl(ctx):
    home, why_not = _toolkit(ctx)

    # The provider must be the one that cuda_library.bzl loads. "@//" is the main repository.
    lockstep = Label("//tools/bazel:cuda_toolkit.bzl").workspace_name
    if not home:
        # buildifier: disable=print
        print("no nvcc: %s. What needs it is skipped. Install NVIDIA's package cuda-toolkit, or python3-pip." % why_not)
        ctx.file("version.txt", "", executable = False)
        ctx.file("BUILD", _BUILD.format(lockstep = lockstep, nvcc = "", default = "None", lib = "/"), executable = False)
        return

    nvcc = home + "/bin/nvcc"
    version = ctx.execute([nvcc, "--version"])
    if version.return_code != 0:
        fail("%s --version failed: %s%s" % (nvcc, version.stdout, version.stderr))
    ctx.file("version.txt", version.stdout, executable = False)
    libs = [home + folder for folder in ["/lib64", "/lib", "/lib/x86_64-linux-gnu"]]
    libs = [lib for lib in libs if ctx.path(lib + "/libcudart_static.a").exists]
    if home != "/usr":
        ctx.symlink(home + "/include", "include")
    ctx.file("BUILD", _BUILD.format(
        lockstep = lockstep,
        nvcc = nvcc,
        default = "\":nvcc_is_there\"",
        lib = libs[0] if libs else home + "/lib64",
    ), executable = False)

cuda_repository = repository_rule(
    implementation = _cuda_repository_impl,
    doc = "The CUDA toolkit: $CUDA_HOME, else the usual folders, else PyPI's wheels. LOCKSTEP_NVCC chooses.",
    environ = ["CUDA_HOME", "HOME", "LOCKSTEP_NVCC"],
    local = True,
)
