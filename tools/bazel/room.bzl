"""room: a library of some of a package's files, so that an edit rebuilds and retests only what uses them."""

def room(name, files, exclude = [], srcs = [], **kwargs):
    """Declares a cc_library of the .cc and .h files of some stems, and of .def files, which headers include.

    Args:
      name: the target's name.
      files: stems, or patterns of them: "sampler", "text/*".
      exclude: stems that other rooms have; *_main is excluded always.
      srcs: generated files.
      **kwargs: passed on to cc_library.
    """
    others = exclude + ["**/*_main"]
    native.cc_library(
        name = name,
        srcs = native.glob([f + ".cc" for f in files], exclude = [f + ".cc" for f in others]) + srcs,
        hdrs = native.glob([f + ".h" for f in files], exclude = [f + ".h" for f in others]),
        textual_hdrs = native.glob([f + ".def" for f in files]),
        **kwargs
    )
