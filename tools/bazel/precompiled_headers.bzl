"""precompiled_headers: headers of others, most of what a file compiles, are compiled once instead of by each file."""

load("@bazel_tools//tools/build_defs/cc:action_names.bzl", "CPP_COMPILE_ACTION_NAME")

def _precompiled_headers_impl(ctx):
    toolchain = ctx.attr._cc_toolchain[cc_common.CcToolchainInfo]

    # What the compiler is told to include is empty: where there is nothing precompiled, or where it was compiled with
    # other flags, each file gets what it includes itself.
    empty = ctx.actions.declare_file("precompiled/%s.h" % ctx.label.name)
    ctx.actions.write(empty, "")
    headers = [empty]
    if ctx.attr.enabled and "clang" not in toolchain.compiler_executable:
        precompiled = ctx.actions.declare_file(empty.basename + ".gch", sibling = empty)
        headers.append(precompiled)
        context = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps]).compilation_context
        features = cc_common.configure_features(
            ctx = ctx,
            cc_toolchain = toolchain,
            requested_features = ctx.features,
            unsupported_features = ctx.disabled_features,
        )
        variables = cc_common.create_compile_variables(
            feature_configuration = features,
            cc_toolchain = toolchain,
            source_file = ctx.file.src.path,
            output_file = precompiled.path,
            user_compile_flags = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts + ctx.attr.copts,
            include_directories = context.includes,
            quote_include_directories = depset(["."], transitive = [context.quote_includes]),
            system_include_directories = context.system_includes,
            use_pic = True,
        )
        action = dict(feature_configuration = features, action_name = CPP_COMPILE_ACTION_NAME)
        ctx.actions.run(
            executable = cc_common.get_tool_for_action(**action),
            arguments = ["-x", "c++-header"] +
                        cc_common.get_memory_inefficient_command_line(variables = variables, **action),
            env = cc_common.get_environment_variables(variables = variables, **action),
            inputs = depset([ctx.file.src], transitive = [context.headers, toolchain.all_files]),
            outputs = [precompiled],
            mnemonic = "PrecompileHeaders",
            progress_message = "Precompiling %s" % ctx.file.src.short_path,
        )
    return [CcInfo(compilation_context = cc_common.create_compilation_context(headers = depset(headers)))]

precompiled_headers = rule(
    doc = "What depends on it can be compiled with -include tools/bazel/precompiled/NAME.h (.bazelrc says which files).",
    implementation = _precompiled_headers_impl,
    attrs = {
        "src": attr.label(doc = "Includes the headers.", allow_single_file = [".h"], mandatory = True),
        "copts": attr.string_list(doc = "The files' own flags."),
        "deps": attr.label_list(providers = [CcInfo]),
        "enabled": attr.bool(default = True),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)
