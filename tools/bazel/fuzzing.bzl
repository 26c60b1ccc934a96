"""Fuzz targets: each NAME_fuzz.cc of a package defines LLVMFuzzerTestOneInput.

With --config=fuzz it links libFuzzer:
    bazel run --config=fuzz //tests/fuzz:NAME_fuzz -- -max_total_time=600
Otherwise it is a test that replays the seeds in corpus/NAME/, and small changes to them.
"""

def fuzz_tests(deps, light = {}):
    """Declares a test for each *_fuzz.cc.

    Args:
      deps: the libraries of fuzz targets that are not in light.
      light: NAME_fuzz -> the libraries that suffice for it: with fewer, its fuzzer builds faster.
    """
    sources = native.glob(["*_fuzz.cc"], allow_empty = True)
    for source in sources:
        name = source[:-len(".cc")]
        corpus = "corpus/" + name[:-len("_fuzz")]
        native.cc_test(
            name = name,
            srcs = [source],
            args = [native.package_name() + "/" + corpus],
            data = native.glob([corpus + "/**"]),
            linkopts = select({
                "//tools/bazel:is_libfuzzer": ["-fsanitize=fuzzer"],
                "//conditions:default": [],
            }),
            deps = light.get(name, deps) + select({
                "//tools/bazel:is_libfuzzer": [],
                "//conditions:default": [":replay_main"],
            }),
        )
