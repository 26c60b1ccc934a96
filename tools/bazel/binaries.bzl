"""Programs by name: NAME_main.cc becomes the cc_binary NAME."""

_SUFFIX = "_main.cc"

def binary_per_main(deps, **kwargs):
    """Declares a cc_binary for each *_main.cc of the package.

    Args:
      deps: the libraries that all of them use.
      **kwargs: passed on to cc_binary.
    """
    for source in native.glob(["*" + _SUFFIX], allow_empty = True):
        native.cc_binary(
            name = source[:-len(_SUFFIX)],
            srcs = [source],
            deps = deps,
            **kwargs
        )
