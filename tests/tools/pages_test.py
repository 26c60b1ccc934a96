#!/usr/bin/env python3
"""Tests of the Markdown pages: their links lead somewhere, the files that they name exist, READMEs are short."""
import os
import pathlib
import re
import tempfile
import unittest

ROOT = pathlib.Path(os.path.realpath(__file__)).parents[2]
FOLDERS = ["core", "kernels", "nn", "optim", "dist", "data", "models", "tools", "tests"]
# A README that grows beyond this should be divided: a page for each folder below.
MOST_LINES = 200


def text_lines(page):
    """The lines of a page that are neither code nor within a fence, each with its number."""
    fenced = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith("    "):
            yield number, line


def anchors(page):
    """What GitHub calls the headings of a page."""
    seen = {}
    for _, line in text_lines(page):
        if heading := re.match(r"#{1,6} +(.*)", line):
            title = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading[1]).strip().lower()
            name = re.sub(r"[^\w\- ]", "", title).replace(" ", "-")
            yield name + (f"-{seen[name]}" if name in seen else "")
            seen[name] = seen.get(name, 0) + 1


def wrong_links(page):
    """The relative links of a page whose file or heading does not exist."""
    for number, line in text_lines(page):
        for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", line)):
            path, _, anchor = link.partition("#")
            target = page.parent / path if path else page
            if ":" not in path and (not target.exists() or (anchor and anchor not in anchors(target))):
                yield f"{page}:{number} links to {link}, which does not exist"


def wrong_names(page, files):
    """The files that a page names, by the end of a path, and that do not exist: renamed ones, for instance."""
    for name in set(re.findall(r"`([a-z][a-z0-9_/]*\.(?:h|cc|cu|cuh|py|sh|bzl|md))`", page.read_text())):
        if not any(file.endswith("/" + name.removeprefix("lockstep/")) for file in files):
            yield f"{page} names {name}, which does not exist"


class PagesTest(unittest.TestCase):
    def setUp(self):
        self.files = [*ROOT.glob("*"), *(f for folder in FOLDERS for f in (ROOT / folder).rglob("*"))]
        self.pages = [f for f in self.files if f.suffix == ".md"]
        self.assertIn(ROOT / "README.md", self.pages)
        self.assertGreater(len(self.pages), len(FOLDERS))

    def test_links_lead_somewhere(self):
        self.assertEqual([wrong for page in self.pages for wrong in wrong_links(page)], [])

    def test_named_files_exist(self):
        files = [str(f) for f in self.files]
        # The change log also names files of earlier versions.
        pages = [p for p in self.pages if p.name != "CHANGELOG.md"]
        self.assertEqual([wrong for page in pages for wrong in wrong_names(page, files)], [])

    def test_readmes_are_short(self):
        lengths = {str(p): len(p.read_text().splitlines()) for p in self.pages if p.name == "README.md"}
        self.assertEqual({p: n for p, n in lengths.items() if n > MOST_LINES}, {})

    def test_what_is_wrong_is_found(self):
        with tempfile.TemporaryDirectory() as folder:
            page = pathlib.Path(folder) / "page.md"
            page.write_text("# A page: `x`\n## Same\n## Same\n    ## code, [a](b)\n"
                            "[1](#a-page-x) [2](#same-1) [3](page.md#same) [4](https://a.b/c) `[5](no)`\n"
                            "[6](#same-2) [7](other.md) [8](page.md#code-ab)\n`dist/page.h` `lockstep/core/a.h` `b.h`\n")
            found = [wrong.split(" links to ")[1].split(",")[0] for wrong in wrong_links(page)]
            self.assertEqual(found, ["#same-2", "other.md", "page.md#code-ab"])
            names = sorted(w.split(" names ")[1] for w in wrong_names(page, ["/core/a.h", "/dist/ab.h", "/dist/page.h"]))
            self.assertEqual(names, ["b.h, which does not exist"])


if __name__ == "__main__":
    unittest.main()
