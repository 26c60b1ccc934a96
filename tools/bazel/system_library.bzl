"""Libraries that the distribution's package manager installs, as Bazel repositories.

The headers stay where they are: the compiler and Bazel's include check know /usr/include anyway, and
copying them into each sandbox takes seconds (Eigen: 1-2 s per file). The tracked input in their place is a
generated header, a copy of the one with the version, so that an upgrade of the package rebuilds what
depends on it.
"""

_ROOTS = ["/usr/include", "/usr/local/include"]

def _system_library_impl(ctx):
    base = None
    for root in _ROOTS:
        for directory in [root] + [root + "/" + d for d in ctx.attr.include_dirs]:
            if not base and ctx.path(directory + "/" + ctx.attr.header).exists:
                base = directory
    if not base:
        fail(("\n\nLockstep needs <%s>, which is not under %s.\n" +
              "On Debian and Ubuntu: sudo apt-get install %s\n" +
              "or let tools/setup install everything that is missing.\n") %
             (ctx.attr.header, " or ".join(_ROOTS), ctx.attr.apt))

    version = base + "/" + ctx.attr.version_header
    if ctx.path(version).exists:
        ctx.file("lockstep_version_of_%s.h" % ctx.name, ctx.read(version), executable = False)
    else:
        ctx.file("lockstep_version_of_%s.h" % ctx.name, "", executable = False)

    ctx.symlink(Label("//tools/bazel:system_cc_library.bzl"), "system_cc_library.bzl")
    libraries = dict(ctx.attr.libraries)
    if not libraries:
        libraries[ctx.name] = " ".join(ctx.attr.linkopts)
    build = [
        "load(\":system_cc_library.bzl\", \"system_cc_library\")",
        "package(default_visibility = [\"//visibility:public\"])",
    ]
    for name, linkopts in libraries.items():
        build.append("system_cc_library(")
        build.append("    name = %r," % name)
        build.append("    version_header = \"lockstep_version_of_%s.h\"," % ctx.name)
        if base != "/usr/include":
            build.append("    system_includes = [%r]," % base)
        build.append("    defines = %r," % ctx.attr.defines)
        build.append("    linkopts = %r," % [o for o in linkopts.split(" ") if o])
        build.append("    deps = %r," % ctx.attr.deps)
        build.append(")")
    ctx.file("BUILD", "\n".join(build) + "\n", executable = False)

system_library = repository_rule(
    implementation = _system_library_impl,
    doc = "Finds an installed C or C++ library; fails with the apt-get line when it is missing.",
    local = True,
    attrs = {
        "apt": attr.string(mandatory = True, doc = "The packages to install."),
        "header": attr.string(mandatory = True, doc = "The header whose presence is probed."),
        "version_header": attr.string(mandatory = True, doc = "The header that changes with the version."),
        "include_dirs": attr.string_list(doc = "Folders below the include root to search as well."),
        "defines": attr.string_list(),
        "linkopts": attr.string_list(),
        "libraries": attr.string_dict(doc = "Several targets: name to linkopts, instead of one."),
        "deps": attr.string_list(),
    },
)
