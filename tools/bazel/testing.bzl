"""Tests by glob: the *_test.cc and *_test.cu of a package are one program, :tests, but for those that need one of their own."""

load("//tools/bazel:cuda_library.bzl", "cuda_library")

def runs(*programs, **kwargs):
    """What lockstep_tests takes in `apart` of a test that runs programs, with tests/subprocess.h.

    Args:
      *programs: their labels, and that of a simulated GPU that they load.
      **kwargs: further keyword arguments of the test.

    Returns:
      Its keyword arguments.
    """
    apart = dict(kwargs)
    apart["data"] = list(programs) + kwargs.get("data", [])
    apart["deps"] = ["//tests:subprocess"] + kwargs.get("deps", [])
    return apart

def _test(name, srcs, deps, data, **kwargs):
    kernels = []
    for source in [s for s in srcs if s.endswith(".cu")]:
        cuda_library(
            name = source[:-len(".cu")] + "_kernels",
            srcs = [source],
            testonly = True,
            deps = deps,
        )
        kernels.append(":" + source[:-len(".cu")] + "_kernels")
    native.cc_test(
        name = name,
        srcs = [s for s in srcs if not s.endswith(".cu")],
        data = data,
        deps = deps + kernels,
        **kwargs
    )

def lockstep_tests(deps, apart = {}, together = {}, exclude = [], data = [], **kwargs):
    """Declares :tests, and a program for each test of `apart`; other sources and headers are their library :support.

    Every test of the package can read the files below testdata/ (by paths from the repository's root:
    "tests/<folder>/testdata/...").

    Args:
      deps: the libraries under test.
      apart: name -> keyword arguments of a program of its own: deps and data (lists are appended), size, env,
        tags, ... It consists of NAME.cc or NAME.cu, or of `srcs`. For tests that kill, that measure their process,
        that run programs, that take long, or whose environment or libraries others do not share.
      together: further keyword arguments of :tests.
      exclude: files that other rules declare.
      data: files that all tests read.
      **kwargs: keyword arguments of every cc_test.
    """
    sources = native.glob(["*_test.cc", "*_test.cu"], exclude = exclude, allow_empty = True)
    native.cc_library(
        name = "support",
        testonly = True,
        srcs = native.glob(["*.cc"], exclude = ["*_test.cc", "*_main.cc"] + exclude, allow_empty = True),
        hdrs = native.glob(["*.h"], exclude = exclude, allow_empty = True),
        visibility = ["//tests:__subpackages__"],
        deps = deps + ["//tests:common", "@googletest//:gmock"],
    )
    data = native.glob(["testdata/**"], allow_empty = True) + data
    deps = deps + [":support", "@googletest//:gtest_main"]
    programs = dict(apart)
    named = [name for name, own in apart.items() if "srcs" not in own]
    listed = [source for own in apart.values() for source in own.get("srcs", [])]
    rest = [s for s in sources if s not in listed and s.rpartition(".")[0] not in named]
    if rest:
        programs["tests"] = dict(together, srcs = rest)
    for name, own in programs.items():
        own = dict(kwargs, **own)
        srcs = own.pop("srcs", [s for s in sources if s.rpartition(".")[0] == name])
        if not srcs or [s for s in srcs if s not in sources]:
            fail("%s names a test that does not exist" % name)
        _test(
            name = name,
            srcs = srcs,
            data = data + [d for d in own.pop("data", []) if d not in data],
            deps = deps + [d for d in own.pop("deps", []) if d not in deps],
            **own
        )
