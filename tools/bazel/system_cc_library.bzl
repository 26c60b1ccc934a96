"""A cc_library for headers and libraries that live outside of the workspace."""

def _system_cc_library_impl(ctx):
    compilation = cc_common.create_compilation_context(
        headers = depset([ctx.file.version_header]),
        system_includes = depset(ctx.attr.system_includes),
        defines = depset(ctx.attr.defines),
    )
    linking = cc_common.create_linking_context(
        linker_inputs = depset([cc_common.create_linker_input(
            owner = ctx.label,
            user_link_flags = depset(ctx.attr.linkopts),
        )]),
    )
    own = CcInfo(compilation_context = compilation, linking_context = linking)
    info = cc_common.merge_cc_infos(
        direct_cc_infos = [own],
        cc_infos = [dep[CcInfo] for dep in ctx.attr.deps],
    )
    return [info, DefaultInfo(files = depset())]

system_cc_library = rule(
    implementation = _system_cc_library_impl,
    attrs = {
        "version_header": attr.label(mandatory = True, allow_single_file = True),
        "system_includes": attr.string_list(doc = "Absolute folders, searched as by -isystem."),
        "defines": attr.string_list(),
        "linkopts": attr.string_list(),
        "deps": attr.label_list(providers = [CcInfo]),
    },
)
