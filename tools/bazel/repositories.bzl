"""Everything that Lockstep needs from outside its tree, for its own WORKSPACE and those of its users.

Libraries come from the system (apt). Nothing is downloaded but nvcc, if a target needs it and the system has none.
"""

load("//tools/bazel:cuda_repository.bzl", "cuda_repository")
load("//tools/bazel:stand_in.bzl", "stand_in_repository")
load("//tools/bazel:system_library.bzl", "system_library")

def lockstep_repositories():
    """Declares the system libraries and, for Debian's Bazel, stand-ins for what it would download."""

    # Debian's build of Bazel 4 has no version. It expects these repositories for its own tools.
    if not native.bazel_version or native.bazel_version.startswith("4."):
        for name in ["rules_cc", "rules_java", "remote_coverage_tools"]:
            _maybe(stand_in_repository, name = name)

    _maybe(cuda_repository, name = "cuda")
    _maybe(
        system_library,
        name = "eigen",
        apt = "libeigen3-dev",
        header = "Eigen/Core",
        include_dirs = ["eigen3"],
        version_header = "Eigen/src/Core/util/Macros.h",
    )
    _maybe(
        system_library,
        name = "dnnl",
        apt = "libdnnl-dev",
        header = "oneapi/dnnl/dnnl.hpp",
        version_header = "oneapi/dnnl/dnnl_version.h",
        linkopts = ["-ldnnl", "-lgomp"],
    )
    _maybe(
        system_library,
        name = "cli11",
        apt = "libcli11-dev",
        header = "CLI/CLI.hpp",
        version_header = "CLI/Version.hpp",
    )

    # Header-only, although Debian also has a compiled library, so that sanitizers and fuzzers see
    # inside it.
    _maybe(
        system_library,
        name = "tomlplusplus",
        apt = "libtomlplusplus-dev",
        header = "toml++/toml.h",
        version_header = "toml++/impl/version.h",
    )
    _maybe(
        system_library,
        name = "nlohmann_json",
        apt = "nlohmann-json3-dev",
        header = "nlohmann/json.hpp",
        version_header = "nlohmann/detail/abi_macros.hpp",
    )
    _maybe(
        system_library,
        name = "simdjson",
        apt = "libsimdjson-dev",
        header = "simdjson.h",
        version_header = "simdjson.h",
        linkopts = ["-lsimdjson"],
    )
    _maybe(
        system_library,
        name = "fmt",
        apt = "libfmt-dev",
        header = "fmt/core.h",
        version_header = "fmt/core.h",
        linkopts = ["-lfmt"],
    )
    _maybe(
        system_library,
        name = "pcre2",
        apt = "libpcre2-dev",
        header = "pcre2.h",
        version_header = "pcre2.h",
        defines = ["PCRE2_CODE_UNIT_WIDTH=8"],
        linkopts = ["-lpcre2-8"],
    )
    _maybe(
        system_library,
        name = "utf8proc",
        apt = "libutf8proc-dev",
        header = "utf8proc.h",
        version_header = "utf8proc.h",
        linkopts = ["-lutf8proc"],
    )
    _maybe(
        system_library,
        name = "zlib",
        apt = "zlib1g-dev",
        header = "zlib.h",
        version_header = "zlib.h",
        linkopts = ["-lz"],
    )
    _maybe(
        system_library,
        name = "zstd",
        apt = "libzstd-dev",
        header = "zstd.h",
        version_header = "zstd.h",
        linkopts = ["-lzstd"],
    )
    _maybe(
        system_library,
        name = "openssl",
        apt = "libssl-dev",
        header = "openssl/evp.h",
        version_header = "openssl/opensslv.h",
        linkopts = ["-lcrypto"],
    )

    # Only for //tools:serve.
    _maybe(
        system_library,
        name = "microhttpd",
        apt = "libmicrohttpd-dev",
        header = "microhttpd.h",
        version_header = "microhttpd.h",
        linkopts = ["-lmicrohttpd"],
    )

    # Only its header: programs load it when they need it.
    _maybe(
        system_library,
        name = "curl",
        apt = "libcurl4-openssl-dev",
        header = "curl/curl.h",
        include_dirs = ["x86_64-linux-gnu"],
        version_header = "curl/curlver.h",
    )
    _maybe(
        system_library,
        name = "googletest",
        apt = "libgtest-dev libgmock-dev",
        header = "gmock/gmock.h",
        version_header = "gmock/gmock.h",
        libraries = {
            "gtest": "-lgtest -lpthread",
            "gmock": "-lgmock -lgtest -lpthread",
            "gtest_main": "-lgtest_main -lgmock -lgtest -lpthread",
        },
    )

def _maybe(rule, name, **kwargs):
    if not native.existing_rule(name):
        rule(name = name, **kwargs)
