"""An op is a folder below kernels/: NAME.h, NAME.cc, NAME_cpu.cc, NAME_cuda.cu, NAME_case.cc."""

load("//tools/bazel:cuda_library.bzl", "cuda_library")

# GCC 12 vectorises almost no loop at -O2. For sanitizer builds, compile time matters more.
KERNEL_COPTS = select({
    "//tools/bazel:is_sanitizer": [],
    "//conditions:default": [
        "-O3",
        "-fno-math-errno",
        "-fno-trapping-math",
    ],
})

def op_folders(exclude):
    """The names of the op folders of this package, sorted: all but `exclude`."""
    folders = {}
    for path in native.glob(["*/*.h", "*/*.cc", "*/*.cu"], allow_empty = True):
        folders[path.split("/")[0]] = True
    return sorted([folder for folder in folders.keys() if folder not in exclude])

def op_library(name, ops = [], deps = []):
    """Declares the libraries NAME (the op) and NAME_case (its OpCase) of the folder NAME.

    Both are linked whole, because they work by static registration.

    Args:
      name: the folder.
      ops: names of the ops that this one calls.
      deps: further libraries.
    """
    common = [
        "//core",
        "//kernels:common",
    ] + ["//kernels:" + op for op in ops] + deps
    headers = native.glob([name + "/*.h", name + "/*.cuh"], allow_empty = True)
    cuda_sources = native.glob([name + "/*.cu"], allow_empty = True)
    cuda = []
    if cuda_sources:
        cuda_library(
            name = name + "_cuda",
            srcs = cuda_sources,
            hdrs = headers,
            deps = common + ["//kernels:cuda_common"],
        )
        # Other programs load them (//kernels:simulated_gpu).
        cuda = select({
            "//tools/bazel:is_cuda": [":" + name + "_cuda"],
            "//conditions:default": [],
        })
    case_sources = native.glob([name + "/*_case.cc"], allow_empty = True)
    native.cc_library(
        name = name,
        srcs = native.glob(
            [name + "/*.cc"],
            exclude = case_sources,
            allow_empty = True,
        ),
        hdrs = headers,
        copts = KERNEL_COPTS,
        alwayslink = True,
        deps = common + cuda,
    )
    native.cc_library(
        name = name + "_case",
        srcs = case_sources,
        alwayslink = True,
        deps = common + [
            ":op_case",
            ":" + name,
        ],
    )
