"""The flag --//tools/bazel:cuda_archs: the GPU architectures to compile for.

Its grammar is that of rules_cuda:

    ARCH_SPECS ::= ARCH_SPEC [ ';' ARCH_SPECS ]
    ARCH_SPEC  ::= [ VIRTUAL ':' ] ARCH [ ',' ARCH ]...
    ARCH       ::= 'sm_' NUMBER | VIRTUAL
    VIRTUAL    ::= 'compute_' NUMBER
    NUMBER     ::= digits, then perhaps 'a' or 'f'

Without VIRTUAL the lowest NUMBER of the spec stands in: "sm_80,sm_86" is "compute_80:sm_80,sm_86".
A VIRTUAL after the colon embeds PTX: "compute_80" is "compute_80:compute_80".
"""

CudaArchsInfo = provider(
    "GPU architectures.",
    fields = {"gencode": "flags for nvcc, a list of strings"},
)

def _number(arch, prefixes, spec):
    for prefix in prefixes:
        if arch.startswith(prefix):
            number = arch[len(prefix):]
            digits = number[:-1] if number and number[-1] in ["a", "f"] else number
            if digits.isdigit():
                return number
    fail("cuda_archs: '%s' in '%s' must be %s, such as %s90" %
         (arch, spec, " or ".join([p + "NUMBER" for p in prefixes]), prefixes[0]))

def gencode_flags(specs):
    """The -gencode flags for a value of the flag.

    Args:
      specs: a string, see the grammar above.

    Returns:
      A list of strings.
    """
    flags = []
    for spec in specs.split(";"):
        parts = [part.strip() for part in spec.strip().split(":")]
        if len(parts) > 2:
            fail("cuda_archs: '%s' has more than one ':'" % spec)
        archs = [arch.strip() for arch in parts[-1].split(",")]
        numbers = [_number(arch, ["sm_", "compute_"], spec) for arch in archs]
        if len(parts) == 2:
            virtual = _number(parts[0], ["compute_"], spec)
        else:
            virtual = numbers[0]
            for number in numbers:
                if int(number.rstrip("af")) < int(virtual.rstrip("af")):
                    virtual = number
        for arch in archs:
            flags.append("-gencode=arch=compute_%s,code=%s" % (virtual, arch))
    return flags

def _cuda_archs_flag_impl(ctx):
    return [
        CudaArchsInfo(gencode = gencode_flags(ctx.build_setting_value)),
        platform_common.TemplateVariableInfo({"CUDA_ARCHS": ctx.build_setting_value}),
    ]

cuda_archs_flag = rule(
    implementation = _cuda_archs_flag_impl,
    build_setting = config.string(flag = True),
)
