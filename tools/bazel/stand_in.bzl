"""Stand-ins for the repositories that Debian's Bazel 4 would download for its own tools.

They re-export the native rules, which are still built into that Bazel.
"""

_CC = ["cc_binary", "cc_import", "cc_library", "cc_proto_library", "cc_test", "cc_toolchain", "cc_toolchain_suite", "fdo_prefetch_hints", "fdo_profile", "objc_import", "objc_library"]
_JAVA = ["java_binary", "java_import", "java_library", "java_lite_proto_library", "java_package_configuration", "java_plugin", "java_proto_library", "java_runtime", "java_test", "java_toolchain"]

def _stand_in_repository_impl(ctx):
    name = ctx.name
    if name == "rules_cc":
        ctx.file("cc/BUILD", "exports_files([\"defs.bzl\"])\n")
        ctx.file("cc/defs.bzl", _reexport(_CC))
    elif name == "rules_java":
        ctx.file("java/BUILD", "exports_files([\"defs.bzl\"])\n")
        ctx.file("java/defs.bzl", _reexport(_JAVA))
    elif name == "remote_coverage_tools":
        ctx.file("BUILD", "".join([
            "filegroup(name = \"%s\", visibility = [\"//visibility:public\"])\n" % target
            for target in ["coverage_report_generator", "lcov_merger"]
        ]))
    else:
        fail("no stand-in is known for @" + name)

def _reexport(rules):
    # Rules that this Bazel lacks are left out rather than failing the load.
    return "".join([
        "%s = native.%s\n" % (rule, rule)
        for rule in rules
    ])

stand_in_repository = repository_rule(
    implementation = _stand_in_repository_impl,
    doc = "An offline replacement for @rules_cc, @rules_java or @remote_coverage_tools.",
)
