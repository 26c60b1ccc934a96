#!/usr/bin/env python3
"""fetch_nvcc.py, with a stand-in for pip."""

import contextlib
import io
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import zipfile
from unittest import mock

sys.path.insert(0, "tools/bazel")
import fetch_nvcc  # noqa: E402


class FetchNvccTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.root = pathlib.Path(scratch.name)
        self.requirements = self.root / "requirements.txt"
        self.requirements.write_text("nvcc==13\n")
        self.downloads = 0

    def pip(self, command, **_):
        self.downloads += 1
        wheels = pathlib.Path(command[command.index("--dest") + 1])
        wheels.mkdir()
        with zipfile.ZipFile(wheels / "nvcc-13.whl", "w") as wheel:
            program = zipfile.ZipInfo("nvidia/cu13/bin/nvcc")
            program.external_attr = 0o700 << 16
            wheel.writestr(program, self.requirements.read_text())
            wheel.writestr("nvidia/cu13/bin/nvlink", "")
            wheel.writestr("nvcc-13.dist-info/licenses/License.txt", "")
            wheel.writestr("nvcc-13.dist-info/RECORD", "")
        return subprocess.CompletedProcess(command, 0, "")

    def fetch(self, pip=None):
        """The folder that it prints."""
        argv = ["fetch_nvcc.py", str(self.root / "cache"), str(self.requirements)]
        with mock.patch.object(sys, "argv", argv), mock.patch.object(subprocess, "run", pip or self.pip), \
                contextlib.redirect_stdout(io.StringIO()) as said:
            fetch_nvcc.main()
        return pathlib.Path(said.getvalue().strip())

    def test_holds_what_compiling_needs(self):
        folder = self.fetch()
        files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
        self.assertEqual(files, ["bin/nvcc", "licenses/nvcc-License.txt"])
        self.assertEqual(os.stat(folder / "bin/nvcc").st_mode & 0o777, 0o755)

    def test_other_requirements_have_another_folder(self):
        first = self.fetch()
        self.assertEqual((self.fetch(), self.downloads), (first, 1))
        self.requirements.write_text("nvcc==14\n")
        second = self.fetch()
        self.assertEqual((first / "bin/nvcc").read_text(), "nvcc==13\n", "another clone still uses it")
        self.assertEqual((second / "bin/nvcc").read_text(), "nvcc==14\n")
        self.assertEqual(len(list((self.root / "cache").iterdir())), 2, "nothing else is left there")

    def test_of_two_at_once_the_first_one_stays(self):
        def pip(command, **options):
            self.fetch()
            return self.pip(command, **options)
        folder = self.fetch(pip)
        self.assertTrue((folder / "bin/nvcc").exists())
        self.assertEqual((self.downloads, len(list((self.root / "cache").iterdir()))), (2, 1))

    def test_says_why_it_cannot(self):
        def pip(command, **_):
            return subprocess.CompletedProcess(command, 1, "WARNING: slow\nERROR: no network\n\nanother line\n")
        with self.assertRaises(SystemExit) as failed:
            self.fetch(pip)
        self.assertEqual(failed.exception.code, "pip: ERROR: no network")
        self.assertEqual(list((self.root / "cache").iterdir()), [])


if __name__ == "__main__":
    unittest.main()
