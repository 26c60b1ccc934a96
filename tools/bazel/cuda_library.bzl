"""cuda_library: .cu sources, compiled by nvcc. The same objects run on real and on simulated GPUs."""

load("//tools/bazel:cuda_archs.bzl", "CudaArchsInfo")
load("//tools/bazel:cuda_toolkit.bzl", "CudaToolkitInfo")

_NVCC_FLAGS = [
    "-std=c++20",
    "--expt-relaxed-constexpr",
    "--extended-lambda",
    "-lineinfo",
    # Eigen: annotations on defaulted members.
    "-diag-suppress=20012",
]

# These are for the host's half, which only launches: -O3 takes a third longer than -O1. The device's half is
# always optimised.
_BY_MODE = {
    "dbg": ["-O0", "-g"],
    "fastbuild": ["-O1"],
    "opt": ["-O1", "-DNDEBUG"],
}

# Every program holds all kernels: 16 MB of them instead of 109. Of PTX alone they are small, and this would
# take a tenth of the compiler's time.
_MACHINE_CODE_FLAGS = ["-compress-mode=size"]

# As labels, so that macros find these in other workspaces, too.
_IS_CUDA = str(Label("//tools/bazel:is_cuda"))
_CUDASIM = str(Label("//tools/cudasim"))
_CUDASIM_LOADER = str(Label("//tools/cudasim/loader"))

# OBJECT REPORT UNUSED HEADERS NVCC ARGUMENT...: compiles, and stores what ptxas reports about each kernel, except
# compile times, beside the object, and which of the headers, of which there is a list, were not read; shows all other
# output. It uses a temporary folder of its own, because nvcc names files by its process ID, which is the same in every
# sandbox.
_COMPILE = """
object=$1 report=$2 unused=$3 headers=$4
shift 4
export TMPDIR=$object.tmp
mkdir -p "$TMPDIR"
trap 'rm -rf "$TMPDIR"' EXIT
said=$TMPDIR/said of_kernels='^ptxas info|^ +[0-9]+ bytes stack frame' code=0
"$@" -Xptxas=-v -MD -MF "$TMPDIR/read" -o "$object" >"$said" 2>&1 || code=$?
grep -E "$of_kernels" "$said" | grep -v 'Compile time' >"$report" || true
grep -vE "$of_kernels" "$said" >&2 || true
((code == 0)) || exit $code
tr -s ' \\\\' '\\n' <"$TMPDIR/read" | sed 's#^\\./##' | sort -u | comm -13 - <(sort -u "$headers") >"$unused"
"""

def _host_flags(ctx):
    # The host half of a .cu must be compiled as the .cc files are: Eigen's alignment, and so the
    # layout of types, depends on the instruction set. nvcc splits -Xcompiler's value at commas.
    flags = ["-fPIC"] + ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts
    return ["-Xcompiler=" + flag.replace(",", "\\,") for flag in flags if not flag.startswith("-std=")]

def _for_nvcc(files_or_folders):
    # The declarations of CUDA there are for host code that needs no toolkit; nvcc has its own. It reads nothing
    # precompiled.
    paths = [(f, f if type(f) == "string" else f.path) for f in files_or_folders.to_list()]
    return [f for f, path in paths if "tools/cudasim/" not in path and "tools/bazel/precompiled/" not in path]

def _nvcc_library_impl(ctx):
    toolkit = ctx.attr._toolkit[CudaToolkitInfo]
    context = cc_common.merge_cc_infos(
        cc_infos = [dep[CcInfo] for dep in ctx.attr.deps],
    ).compilation_context
    common = ctx.actions.args()
    common.add_all(_NVCC_FLAGS)
    common.add_all(_BY_MODE[ctx.var["COMPILATION_MODE"]])
    gencode = ctx.attr._archs[CudaArchsInfo].gencode
    common.add_all(gencode)
    if [flag for flag in gencode if "code=sm_" in flag]:
        common.add_all(_MACHINE_CODE_FLAGS)
    common.add_all(_host_flags(ctx))
    common.add_all(context.defines, format_each = "-D%s")
    # The root is there only if a library of the workspace is among deps.
    quote_includes = context.quote_includes.to_list()
    common.add_all((["."] if "." not in quote_includes else []) + quote_includes, before_each = "-I")
    common.add_all(context.includes, before_each = "-I")
    common.add_all(_for_nvcc(context.system_includes), before_each = "-isystem")
    headers = ctx.files.hdrs + _for_nvcc(context.headers)
    list_of_headers = ctx.actions.declare_file("_nvcc/%s/headers" % ctx.label.name)
    ctx.actions.write(list_of_headers, "".join([header.path + "\n" for header in headers]))
    inputs = depset(headers + [toolkit.version, list_of_headers])

    objects = []
    reports = []
    for source in ctx.files.srcs:
        stem = source.path
        if source.owner.package and stem.startswith(source.owner.package + "/"):
            stem = stem[len(source.owner.package) + 1:]
        output = ctx.actions.declare_file("_nvcc/%s/%s.pic.o" % (ctx.label.name, stem.replace("/", "_")))
        report = ctx.actions.declare_file(output.basename.replace(".pic.o", ".resources"), sibling = output)
        unused = ctx.actions.declare_file(output.basename.replace(".pic.o", ".unused"), sibling = output)
        ctx.actions.run(
            executable = "/bin/bash",
            arguments = [
                "-c",
                _COMPILE,
                "compile",
                output.path,
                report.path,
                unused.path,
                list_of_headers.path,
                toolkit.nvcc,
                common,
                "-x",
                "cu",
                "-c",
                source.path,
            ],
            inputs = depset([source], transitive = [inputs]),
            outputs = [output, report, unused],
            # An edit of another header does not compile it again.
            unused_inputs_list = unused,
            mnemonic = "NvccCompile",
            progress_message = "Compiling %s with nvcc" % source.short_path,
            use_default_shell_env = True,
        )
        objects.append(output)
        reports.append(report)

    toolchain = ctx.attr._cc_toolchain[cc_common.CcToolchainInfo]
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    linking, outputs = cc_common.create_linking_context_from_compilation_outputs(
        name = ctx.label.name,
        actions = ctx.actions,
        feature_configuration = features,
        cc_toolchain = toolchain,
        compilation_outputs = cc_common.create_compilation_outputs(
            objects = depset(objects),
            pic_objects = depset(objects),
        ),
        linking_contexts = [dep[CcInfo].linking_context for dep in ctx.attr.deps + ctx.attr.runtime],
        alwayslink = True,
    )

    # Without the headers: so what is linked with a kernel is not recompiled when one of them changes.
    return [
        CcInfo(linking_context = linking),
        DefaultInfo(files = depset(objects)),
        OutputGroupInfo(resources = depset(objects + reports)),
    ]

_nvcc_library = rule(
    implementation = _nvcc_library_impl,
    attrs = {
        "srcs": attr.label_list(allow_files = [".cu"]),
        "hdrs": attr.label_list(allow_files = [".h", ".cuh"]),
        "deps": attr.label_list(providers = [CcInfo]),
        "runtime": attr.label_list(doc = "Linked, but not included: a CUDA runtime.", providers = [CcInfo]),
        "_archs": attr.label(default = "//tools/bazel:cuda_archs"),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
        "_toolkit": attr.label(default = "@cuda//:toolkit", providers = [CudaToolkitInfo]),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)

def link_only_impl(ctx):
    info = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps])
    return [
        CcInfo(linking_context = info.linking_context),
        DefaultInfo(files = depset(transitive = [dep[DefaultInfo].files for dep in ctx.attr.deps])),
    ]

# The objects without the headers: so what is linked with them is not recompiled when a header changes.
link_only = rule(
    implementation = link_only_impl,
    attrs = {"deps": attr.label_list(providers = [CcInfo])},
)

def _simulated_objects_impl(ctx):
    info = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps])
    kernels = [dep.label for dep in ctx.attr.deps]
    inputs = [
        linked
        for linked in info.linking_context.linker_inputs.to_list()
        if linked.owner.workspace_name != ctx.label.workspace_name or
           linked.owner.package in ["tools/cudasim", "tools/cudasim/ptx"] or
           linked.owner in kernels
    ]

    # In this order what uses a library comes before it; the default one would be turned round.
    ordered = depset(inputs, order = "topological")
    return [CcInfo(linking_context = cc_common.create_linking_context(linker_inputs = ordered))]

# Of everything that deps are linked with, only they themselves, the simulator and system libraries. The
# program provides the rest, above all core, which must not exist twice.
simulated_objects = rule(
    implementation = _simulated_objects_impl,
    attrs = {"deps": attr.label_list(providers = [CcInfo])},
)

def cuda_library(name, srcs, hdrs = [], deps = [], **kwargs):
    """A library of .cu files, linked whole because kernels register themselves.

    It exports no headers: put those into a cc_library. Where there is no nvcc, it is incompatible.

    Args:
      name: the target's name.
      srcs: .cu files, compiled by nvcc for the GPUs of --//tools/bazel:cuda_archs.
      hdrs: .h and .cuh files that the sources include.
      deps: cc_library targets; a CUDA runtime is added automatically: the simulator, or with --config=cuda what loads
        NVIDIA's.
      **kwargs: testonly, tags.
    """
    _nvcc_library(
        name = name,
        srcs = srcs,
        hdrs = hdrs,
        deps = deps + ["@cuda//:headers"],
        runtime = select({
            _IS_CUDA: [_CUDASIM_LOADER],
            "//conditions:default": [_CUDASIM],
        }),
        **kwargs
    )

    # The kernels' objects and ptxas's reports (tools/kernel_resources.py, tools/kernel_sass.py); empty for simulated
    # GPUs, which have no machine code.
    native.filegroup(
        name = name + "_resources",
        srcs = select({
            _IS_CUDA: [":" + name],
            "//conditions:default": [],
        }),
        output_group = "resources",
        tags = ["manual"],
        testonly = kwargs.get("testonly", False),
    )
