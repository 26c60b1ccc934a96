"""release: libraries, headers and programs as an archive that is used without Bazel."""

load(":version.bzl", "VERSION")

_VIRTUAL = "/_virtual_includes/"

def _installed_headers(info, folders, exclude_suffixes):
    """Where each header lies below include/: {path in the archive: file}."""
    installed = {}
    for header in info.compilation_context.headers.to_list():
        if _VIRTUAL in header.path:
            # .../_virtual_includes/TARGET/lockstep/lockstep.h: it has an include_prefix.
            installed[header.path.partition(_VIRTUAL)[2].partition("/")[2]] = header
        elif (header.short_path.partition("/")[0] in folders and
              not [suffix for suffix in exclude_suffixes if header.path.endswith(suffix)]):
            installed["lockstep/" + header.short_path] = header
    return installed

def _archives(linker_inputs):
    return [
        library.pic_static_library or library.static_library
        for linked in linker_inputs
        for library in linked.libraries
    ]

def _once(flags):
    """The flags without repetitions, each at its last place: after the libraries that need it."""
    kept = []
    for flag in reversed(flags):
        if flag not in kept:
            kept.append(flag)
    return reversed(kept)

def _release_impl(ctx):
    info = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps])
    linked = info.linking_context.linker_inputs.to_list()
    system = [i.owner.workspace_name for i in linked if i.owner.workspace_name != ctx.label.workspace_name]
    headers = _installed_headers(info, ctx.attr.folders, ctx.attr.exclude_suffixes)
    archives = _archives(linked)
    programs = {
        program.label.name[:-len("_main")]: _archives([
            i
            for i in program[CcInfo].linking_context.linker_inputs.to_list()
            if i.owner == program.label
        ])[0]
        for program in ctx.attr.programs
    }
    lines = ["version " + VERSION]
    lines += ["copt " + flag for flag in ctx.fragments.cpp.copts if flag.startswith(("-m", "-ffp-"))]
    lines += ["linkopt " + flag for flag in _once([f for i in linked for f in i.user_link_flags])]
    lines += ["system " + name for name in system]
    lines += ["header %s %s" % (name, file.path) for name, file in headers.items()]
    lines += ["archive " + file.path for file in archives]
    lines += ["plugin " + file.path for file in ctx.files.plugins]
    lines += ["program %s %s" % (name, file.path) for name, file in programs.items()]
    lines += ["example " + file.path for file in ctx.files.examples]
    lines += ["file " + file.path for file in ctx.files.files]
    manifest = ctx.actions.declare_file(ctx.label.name + ".manifest")
    ctx.actions.write(manifest, "\n".join(lines) + "\n")
    output = ctx.actions.declare_file("lockstep-%s.tar.gz" % VERSION)
    ctx.actions.run_shell(
        command = ctx.file._script.path + ' "$@"',
        arguments = [manifest.path, output.path],
        inputs = [manifest, ctx.file._script, ctx.file._archive_script] + headers.values() + archives +
                 programs.values() + ctx.files.plugins + ctx.files.examples + ctx.files.files +
                 ctx.files._templates,
        outputs = [output],
        mnemonic = "Release",
        progress_message = "Packing %s" % output.short_path,
        use_default_shell_env = True,
    )
    return [DefaultInfo(files = depset([output]), runfiles = ctx.runfiles(files = [output]))]

release = rule(
    implementation = _release_impl,
    attrs = {
        "deps": attr.label_list(providers = [CcInfo], doc = "What the libraries consist of."),
        "examples": attr.label_list(allow_files = True, doc = "Programs and pages, for the folder examples."),
        "exclude_suffixes": attr.string_list(doc = "Headers whose names end so are not installed."),
        "files": attr.label_list(allow_files = True, doc = "Beside the README."),
        "folders": attr.string_list(doc = "Those whose headers are installed."),
        "plugins": attr.label_list(allow_files = True, doc = "Shared libraries that are loaded on demand."),
        "programs": attr.label_list(providers = [CcInfo], doc = "NAME_main, see binaries.bzl."),
        "_archive_script": attr.label(default = "//tools:archive.sh", allow_single_file = True),
        "_script": attr.label(default = "//tools/release:make_release.sh", allow_single_file = True),
        "_templates": attr.label(default = "//tools/release:templates"),
    },
    fragments = ["cpp"],
)
