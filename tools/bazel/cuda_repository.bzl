"""The CUDA toolkit as the repository @cuda: the system's, or else nvcc from PyPI.

It can always be declared. It is looked for, and fetched, when a target needs it, which only those do that are
made by nvcc: a build for the CPU does not. Where there is neither, such targets are incompatible: named, they
are an error, and of "//..." Bazel skips them. Who can do without asks :has_nvcc.
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

config_setting(
    name = "has_nvcc",
    constraint_values = [":nvcc_is_there"],
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

# Where programs find the toolkit's libraries when they load them.
cc_library(
    name = "run_path",
    data = [":toolkit"],
    linkopts = ["-Wl,-rpath,{lib}"],
)
"""

# As in tools/find_nvcc.sh.
_SYSTEM = ["/usr/local/cuda", "/usr", "/opt/cuda"]

# Of CUDA, with whose headers the sources are written.
_MAJOR_VERSION = 13

def _major_version(ctx, nvcc):
    """Of CUDA, as nvcc says; 0 if it does not."""
    said = ctx.execute([nvcc, "--version"]).stdout
    major = said.partition("release ")[2].partition(".")[0]
    return int(major) if major.isdigit() else 0

def _system_toolkit(ctx):
    """Its folder; else why not."""
    old = ""
    for home in [ctx.os.environ.get("CUDA_HOME", "")] + _SYSTEM:
        nvcc = home + "/bin/nvcc"
        if home and ctx.path(nvcc).exists:
            version = _major_version(ctx, nvcc)
            if version >= _MAJOR_VERSION:
                return home, None
            old += ", but %s of CUDA %s" % (nvcc, version or "(unknown version)")
    return None, "there is no bin/nvcc of CUDA %d in $CUDA_HOME, %s%s" % (_MAJOR_VERSION, ", ".join(_SYSTEM), old)

def _pypi_toolkit(ctx):
    """Its folder, outside of Bazel's, so that clones share it and a restarted server does not fetch it; else why not."""
    python, user = ctx.which("python3"), ctx.os.environ.get("HOME", "")
    if not python or not user:
        return None, "python3 and $HOME are needed to fetch it from PyPI"
    folders = user + "/.cache/lockstep-nvcc"
    ctx.report_progress("fetching nvcc from PyPI (105 MB), unless " + folders + " has it")
    fetched = ctx.execute([
        python,
        ctx.path(Label("//tools/bazel:fetch_nvcc.py")),
        folders,
        ctx.path(Label("//tools/bazel:nvcc_requirements.txt")),
    ], timeout = 1800)
    if fetched.return_code != 0:
        return None, "it could not be fetched from PyPI (%s)" % fetched.stderr.strip()
    return fetched.stdout.strip(), None

def _toolkit(ctx):
    which = ctx.os.environ.get("LOCKSTEP_NVCC", "")
    if which not in ["", "system", "pypi", "none"]:
        fail("LOCKSTEP_NVCC is '%s'; it must be system, pypi, none, or empty: the system's or else PyPI's" % which)
    if which == "none":
        return None, "LOCKSTEP_NVCC=none"
    system, why_not = None, ""
    if which != "pypi":
        system, why_not = _system_toolkit(ctx)
        if system or which == "system":
            return system, why_not
        why_not += "; "
    pypi, why_not_pypi = _pypi_toolkit(ctx)
    return pypi, "%s%s" % (why_not, why_not_pypi)

def _cuda_repository_impl(ctx):
    home, why_not = _toolkit(ctx)

    # The provider must be the one that cuda_library.bzl loads. "@//" is the main repository.
    lockstep = Label("//tools/bazel:cuda_toolkit.bzl").workspace_name
    if not home:
        # buildifier: disable=print
        print("no nvcc: %s. What needs it is skipped. Install NVIDIA's package cuda-toolkit, or python3-pip." % why_not)
        ctx.file("version.txt", "", executable = False)
        ctx.file("BUILD", _BUILD.format(
            lockstep = lockstep,
            nvcc = "",
            default = "None",
            lib = "/",
        ), executable = False)
        return

    nvcc = home + "/bin/nvcc"
    ctx.file("version.txt", ctx.execute([nvcc, "--version"]).stdout, executable = False)
    libs = [home + folder for folder in ["/lib64", "/lib", "/lib/x86_64-linux-gnu"]]
    libs = [lib for lib in libs if ctx.path(lib + "/libcudart.so.13").exists]
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
