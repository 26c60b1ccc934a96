"""Tests by glob: each NAME_test.cc of a package is the cc_test NAME_test."""

def lockstep_tests(deps, extra = {}, exclude = [], **kwargs):
    """Declares a cc_test per *_test.cc; other sources and headers are shared as the library :support.

    Files below testdata/ are readable by every test of the package (path from the root of the
    repository: "tests/<folder>/testdata/...").

    Args:
      deps: the libraries under test.
      extra: per test name, keyword arguments that add to these: deps, data (lists are appended),
        size, tags, args, ...
      exclude: files that are declared elsewhere.
      **kwargs: keyword arguments of every cc_test.
    """
    test_sources = native.glob(["*_test.cc"], exclude = exclude, allow_empty = True)
    native.cc_library(
        name = "support",
        testonly = True,
        srcs = native.glob(["*.cc"], exclude = ["*_test.cc", "*_main.cc"] + exclude, allow_empty = True),
        hdrs = native.glob(["*.h"], exclude = exclude, allow_empty = True),
        deps = deps + ["//tests:common", "@googletest//:gmock"],
    )
    unknown = [name for name in extra if name + ".cc" not in test_sources]
    if unknown:
        fail("extra names tests that do not exist: " + ", ".join(unknown))
    data = native.glob(["testdata/**"], allow_empty = True)
    for source in test_sources:
        name = source[:-len(".cc")]
        own = dict(kwargs)
        own.update(extra.get(name, {}))
        native.cc_test(
            name = name,
            srcs = [source],
            data = data + own.pop("data", []),
            deps = deps + own.pop("deps", []) + [":support", "@googletest//:gtest_main"],
            **own
        )
