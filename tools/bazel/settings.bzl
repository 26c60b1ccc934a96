"""Custom build settings: flags that config_setting(flag_values) can select on."""

def _string_flag_impl(ctx):
    value = ctx.build_setting_value
    if ctx.attr.values and value not in ctx.attr.values:
        fail("%s is '%s'; it must be one of %s" % (ctx.label, value, ", ".join(ctx.attr.values)))
    return [StringFlagInfo(value = value)]

StringFlagInfo = provider("The value of a string_flag.", fields = ["value"])

string_flag = rule(
    implementation = _string_flag_impl,
    build_setting = config.string(flag = True),
    attrs = {"values": attr.string_list(doc = "The accepted values; if empty, any.")},
)
