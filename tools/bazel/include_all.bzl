"""A generated source that includes every given header: compiling it shows that they are complete."""

def _include_all_impl(ctx):
    output = ctx.actions.declare_file(ctx.attr.out)
    lines = ["// Includes every header of %s." % ", ".join([str(d.label) for d in ctx.attr.deps])]
    lines += sorted(["#include \"%s\"" % f.short_path for f in _headers(ctx)])
    ctx.actions.write(output, "\n".join(lines) + "\n")
    return [DefaultInfo(files = depset([output]))]

def _headers(ctx):
    headers = depset(transitive = [dep[CcInfo].compilation_context.headers for dep in ctx.attr.deps])
    return [
        f
        for f in headers.to_list()
        if f.short_path.split("/")[0] in ctx.attr.folders and
           not [suffix for suffix in ctx.attr.exclude_suffixes if f.short_path.endswith(suffix)]
    ]

include_all = rule(
    implementation = _include_all_impl,
    attrs = {
        "deps": attr.label_list(mandatory = True, providers = [CcInfo]),
        "exclude_suffixes": attr.string_list(doc = "Excludes headers whose names end with one of these."),
        "folders": attr.string_list(mandatory = True, doc = "Only headers below these folders."),
        "out": attr.string(mandatory = True),
    },
)
