"""The CUDA toolkit of this machine as the repository @cuda.

It can always be declared: without a toolkit only builds with --config=cuda fail, with a message that
says what to install.
"""

_BUILD = """
load(":cuda_toolkit.bzl", "cuda_toolkit")

package(default_visibility = ["//visibility:public"])

cuda_toolkit(
    name = "toolkit",
    nvcc = {nvcc},
    version = "version.txt",
    missing = {missing},
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

_MISSING = ("There is no CUDA toolkit (bin/nvcc) in $CUDA_HOME, /usr/local/cuda, /usr or " +
            "/opt/cuda. Install NVIDIA's package cuda-toolkit, or Debian's nvidia-cuda-toolkit, " +
            "or build without --config=cuda (see user.bazelrc).")

def _cuda_repository_impl(ctx):
    homes = [ctx.os.environ.get("CUDA_HOME", ""), "/usr/local/cuda", "/usr", "/opt/cuda"]
    home = None
    for candidate in homes:
        if candidate and not home and ctx.path(candidate + "/bin/nvcc").exists:
            home = candidate
    ctx.symlink(Label("//tools/bazel:cuda_toolkit.bzl"), "cuda_toolkit.bzl")
    if not home:
        ctx.file("version.txt", "", executable = False)
        ctx.file("BUILD", _BUILD.format(nvcc = "''", missing = repr(_MISSING), lib = "/"), executable = False)
        return

    nvcc = home + "/bin/nvcc"
    version = ctx.execute([nvcc, "--version"])
    if version.return_code != 0:
        fail("%s --version failed: %s%s" % (nvcc, version.stdout, version.stderr))
    ctx.file("version.txt", version.stdout, executable = False)
    lib = home + "/lib64"
    if not ctx.path(lib + "/libcudart_static.a").exists:
        lib = home + "/lib/x86_64-linux-gnu"
    if home != "/usr":
        ctx.symlink(home + "/include", "include")
    ctx.file("BUILD", _BUILD.format(nvcc = repr(nvcc), missing = "''", lib = lib), executable = False)

cuda_repository = repository_rule(
    implementation = _cuda_repository_impl,
    doc = "Finds the CUDA toolkit: $CUDA_HOME, else the usual folders.",
    environ = ["CUDA_HOME"],
    local = True,
)
