"""Tests by glob: each NAME_test.cc or NAME_test.cu of a package is the cc_test NAME_test."""

load("//tools/bazel:cuda_library.bzl", "cuda_library")

def runs(*programs, **kwargs):
    """What lockstep_tests takes as `extra` of a test that runs programs, with tests/subprocess.h.

    Args:
      *programs: their labels, and that of a simulated GPU that they load.
      **kwargs: further keyword arguments of the test.

    Returns:
      Its keyword arguments.
    """
    extra = dict(kwargs)
    extra["data"] = list(programs) + kwargs.get("data", [])
    extra["deps"] = ["//tests:subprocess"] + kwargs.get("deps", [])
    return extra

def lockstep_tests(deps, extra = {}, exclude = [], **kwargs):
    """Declares a cc_test per *_test.cc and *_test.cu; other sources and headers are shared as the library :support.

    Every test of the package can read the files below testdata/ (by paths from the repository's root:
    "tests/<folder>/testdata/...").

    Args:
      deps: the libraries under test.
      extra: test name -> additional keyword arguments: deps, data (lists are appended), size, tags, args, ...
      exclude: files that other rules declare.
      **kwargs: keyword arguments of every cc_test.
    """
    test_sources = native.glob(["*_test.cc", "*_test.cu"], exclude = exclude, allow_empty = True)
    native.cc_library(
        name = "support",
        testonly = True,
        srcs = native.glob(["*.cc"], exclude = ["*_test.cc", "*_main.cc"] + exclude, allow_empty = True),
        hdrs = native.glob(["*.h"], exclude = exclude, allow_empty = True),
        visibility = ["//tests:__subpackages__"],
        deps = deps + ["//tests:common", "@googletest//:gmock"],
    )
    names = [source.rpartition(".")[0] for source in test_sources]
    unknown = [name for name in extra if name not in names]
    if unknown:
        fail("extra names tests that do not exist: " + ", ".join(unknown))
    data = native.glob(["testdata/**"], allow_empty = True)
    for source in test_sources:
        name = source.rpartition(".")[0]
        own = dict(kwargs)
        own.update(extra.get(name, {}))
        own_deps = deps + [d for d in own.pop("deps", []) if d not in deps] + [":support", "@googletest//:gtest_main"]
        if source.endswith(".cu"):
            cuda_library(
                name = name + "_kernels",
                srcs = [source],
                testonly = True,
                deps = own_deps,
            )
            own_deps = [":" + name + "_kernels"]
        native.cc_test(
            name = name,
            srcs = [] if source.endswith(".cu") else [source],
            data = data + own.pop("data", []),
            deps = own_deps,
            **own
        )
