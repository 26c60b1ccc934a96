"""What cuda_library needs to know about the CUDA toolkit."""

CudaToolkitInfo = provider(
    "A CUDA toolkit.",
    fields = {
        "nvcc": "absolute path of nvcc",
        "version": "a file that changes with the toolkit's version",
    },
)

def _cuda_toolkit_impl(ctx):
    return [
        CudaToolkitInfo(nvcc = ctx.attr.nvcc, version = ctx.file.version),
        DefaultInfo(files = depset([ctx.file.version])),
    ]

cuda_toolkit = rule(
    implementation = _cuda_toolkit_impl,
    attrs = {
        "nvcc": attr.string(),
        "version": attr.label(mandatory = True, allow_single_file = True),
    },
    provides = [CudaToolkitInfo],
)
