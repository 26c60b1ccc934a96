"""Programs by name: NAME_main.cc becomes the cc_binary NAME."""

_SUFFIX = "_main.cc"

def main_as_function(name, **kwargs):
    """A cc_library in which main() is called NAME_main(), for a program that combines several.

    Args:
      name: the program's name; the library is called NAME_as_function.
      **kwargs: passed on to cc_library.
    """
    native.cc_library(
        name = name + "_as_function",
        copts = ["-Dmain=%s_main" % name],
        tags = ["manual"],
        **kwargs
    )

def program(name, srcs, deps, **kwargs):
    """Declares the cc_binary NAME, and NAME_main, its own objects: //:release links them with the shared library.

    Args:
      name: the program's name.
      srcs: the file with its main().
      deps: the libraries that it uses.
      **kwargs: passed on to both.
    """
    native.cc_library(
        name = name + "_main",
        srcs = srcs,
        linkstatic = True,
        deps = deps,
        **kwargs
    )
    native.cc_binary(
        name = name,
        deps = [":%s_main" % name],
        **kwargs
    )

def binary_per_main(deps, exclude = [], **kwargs):
    """Declares a program for each *_main.cc of the package, in any folder, and its main_as_function.

    Args:
      deps: the libraries that all of them use.
      exclude: files that other rules declare.
      **kwargs: passed on to these rules.
    """
    for source in native.glob(["**/*" + _SUFFIX], exclude = exclude, allow_empty = True):
        name = source.split("/")[-1][:-len(_SUFFIX)]
        program(
            name = name,
            srcs = [source],
            deps = deps,
            **kwargs
        )
        main_as_function(
            name = name,
            srcs = [source],
            deps = deps,
            **kwargs
        )
