#!/usr/bin/env python3
"""Tests of what tools/gpu_check reports on machines that lack something."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, os.path.join("tools", "gpu_check"))
import host  # pylint: disable=wrong-import-position
import libraries
from runner import Failed

BUNDLE = {"build": "1", "backend": "cuda", "cuda": 13, "architectures": "compute_80:sm_80,compute_80;sm_90a",
          "glibc": "2.34", "glibcxx": "3.4.30", "loads": "libcudart.so.99"}
FOUND = "\tlibcublas.so.13 => /usr/lib/libcublas.so.13 (0x1)\n\tlibc.so.6 => /lib/libc.so.6 (0x1)\n"


class HostTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        (self.root / "libexec").mkdir()
        for patch in (mock.patch.object(host, "HERE", self.root),
                      mock.patch.dict(os.environ, PATH=f"{self.root}:{os.environ['PATH']}")):
            patch.start()
            self.addCleanup(patch.stop)

    def program(self, path, text):
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(0o755)
        return path

    def smi(self, text):
        self.program(self.root / "nvidia-smi", text)

    def gpu_problems(self, name="NVIDIA H200", driver="580.65.06", capability="9.0", **bundle):
        machine = {"name": name, "driver": driver, "capability": capability, "gpus": 1}
        with mock.patch.object(host, "listed_libraries", return_value=FOUND):
            return host.check_host(False, dict(BUNDLE, **bundle), machine, {})

    def test_a_gpu_is_described(self):
        self.smi("echo 'NVIDIA H200, 580.65.06, 9.0'; echo 'NVIDIA H200, 580.65.06, 9.0'")
        self.assertEqual(host.describe_machine(False), {"name": "NVIDIA H200, driver 580.65.06", "gpus": 2,
                                                        "kind": "NVIDIA H200, driver 580", "driver": "580.65.06",
                                                        "capability": "9.0"})
        self.assertEqual(self.gpu_problems(), [])
        with mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES="1"):
            self.assertEqual(host.describe_machine(False)["gpus"], 1)

    def test_no_gpu(self):
        for text, words in (("echo No devices were found; exit 6", "names no GPU: No devices"),
                            ("echo 'NVIDIA H200, [N/A]'", "names no GPU"), ("true", "names no GPU")):
            self.smi(text)
            with self.assertRaisesRegex(Failed, words) as caught:
                host.describe_machine(False)
            self.assertIn("--simulated", caught.exception.fix)
        with mock.patch.dict(os.environ, PATH=str(self.root / "libexec")):
            with self.assertRaisesRegex(Failed, "nvidia-smi cannot be run"):
                host.describe_machine(False)

    def test_cuda_that_does_not_start(self):
        op_test = self.program(self.root / "libexec" / "op_test", "[[ $1 == --device=cuda ]]")
        self.assertEqual(host.cuda_problems(dict(os.environ)), [])
        self.program(op_test, "echo 'op_test: CUDA does not start: a stub; install the driver' >&2; exit 2")
        (what, fix), = host.cuda_problems(dict(os.environ))
        self.assertEqual(what, "CUDA does not start: a stub; install the driver")
        self.assertIn("no program", fix)
        self.program(op_test, "kill -SEGV $$")
        self.assertEqual(host.cuda_problems(dict(os.environ))[0][0], "op_test ended with -11")

    def test_an_old_driver(self):
        (what, fix), = self.gpu_problems(driver="570.86.15")
        self.assertEqual(what, "the GPU's driver is 570.86.15; CUDA 13 needs 580 or later")
        self.assertIn("update the driver", fix)
        self.assertEqual(self.gpu_problems(driver="570.86.15", cuda=12), [])

    def test_a_gpu_without_code(self):
        (what, fix), = self.gpu_problems(name="Tesla T4", capability="7.5")
        self.assertIn("Tesla T4 has compute capability 7.5; the bundle is for compute_80:sm_80,", what)
        self.assertIn("cuda_archs", fix)
        for gpu, architectures, runs in (("8.6", "sm_80", True), ("9.0", "sm_80", False), ("9.0", "sm_90a", True),
                                         ("10.0", "sm_90a", False), ("12.0", "compute_80:sm_80,compute_80", True),
                                         ("8.0", "sm_86", False), ("9.0", "compute_80:sm_80", False),
                                         ("12.0", "compute_120f:sm_120f", True)):
            self.assertEqual(host.has_code_for(gpu, architectures), runs, (gpu, architectures))

    def test_the_wrong_bundle(self):
        with mock.patch.object(host, "listed_libraries", return_value=FOUND):
            (what, fix), = host.check_host(True, BUNDLE, {}, {})
            self.assertEqual(what, "this bundle was built with --config=cuda")
            self.assertIn("without --simulated", fix)
            (what, fix), = host.check_host(False, dict(BUNDLE, backend="simulated", cuda=None), {}, {})
            self.assertEqual(what, "this bundle was built without --config=cuda")

    def test_an_old_system(self):
        listed = ("/x/lockstep: /lib/libc.so.6: version `GLIBC_2.34' not found (required by /x/lockstep)\n"
                  "/x/lockstep: /lib/libstdc++.so.6: version `GLIBCXX_3.4.30' not found (required by /x/lockstep)\n")
        (what, fix), = host.library_problems(listed + FOUND, BUNDLE)
        self.assertEqual(what, "the system is older than the bundle: GLIBCXX_3.4.30, GLIBC_2.34 not found")
        self.assertIn("glibc 2.34 and the libstdc++ of GCC 12 (GLIBCXX_3.4.30) or later", fix)

    def test_missing_libraries(self):
        def fixes(*names):
            return dict(host.library_problems("".join(f"\t{n} => not found\n" for n in names) + FOUND, BUNDLE))
        problems = fixes("libcublasLt.so.13", "libcublas.so.13", "libdnnl.so.2", "libstdc++.so.6")
        cublas = "libcublas.so.13, libcublasLt.so.13 of CUDA 13 not found"
        self.assertEqual(list(problems), ["libstdc++.so.6 not found", cublas, "libdnnl.so.2 not found"])
        self.assertIn("apt-get install libcublas-13-0", problems[cublas])
        self.assertEqual(host.library_problems(FOUND, BUNDLE), [])

    def test_the_loader_is_asked(self):
        with self.assertRaisesRegex(Failed, "there is no .*/libexec/lockstep"):
            host.listed_libraries(dict(os.environ), BUNDLE)
        shutil.copy("/bin/true", self.root / "libexec" / "lockstep")
        listed = host.listed_libraries(dict(os.environ), BUNDLE)
        self.assertIn("libc.so.6 => /", listed)
        self.assertIn("libcudart.so.99 => not found", listed)
        # As on a system without glibc: the dynamic linker is missing.
        (self.root / "libexec" / "lockstep").write_text("#!/no/such/loader\n")
        (what, _), = host.library_problems(host.listed_libraries(dict(os.environ), BUNDLE), BUNDLE)
        self.assertIn("the system is older than the bundle: glibc not found", what)

    def test_a_bundle_that_is_not_whole(self):
        for text in (None, "{"):
            if text:
                (self.root / "bundle.json").write_text(text)
            with self.assertRaisesRegex(Failed, "bundle.json cannot be read") as caught:
                host.read_bundle()
            self.assertIn("unpack", caught.exception.fix)
        (self.root / "bundle.json").write_text(json.dumps(BUNDLE))
        self.assertEqual(host.read_bundle(), BUNDLE)

    def test_cuda_of_a_python(self):
        python = self.program(self.root / "python", "echo /site/nvidia/cublas/lib; echo /site/nvidia/nccl/lib")
        with mock.patch.object(host, "listed_libraries", return_value="libcublas.so.13 => not found"), \
                mock.patch.dict(os.environ, LD_LIBRARY_PATH="/before", CUDA_HOME="/toolkit"):
            self.assertEqual(host.find_cuda(str(python), BUNDLE)["LD_LIBRARY_PATH"],
                             "/before:/site/nvidia/cublas/lib:/site/nvidia/nccl/lib:/toolkit/lib64")
            with self.assertRaisesRegex(Failed, "--python=/no/python cannot be run"):
                host.find_cuda("/no/python", BUNDLE)

    def test_cuda_beside_the_bundle_comes_before_other_versions(self):
        (self.root / "cuda").mkdir()
        python = self.program(self.root / "python", "echo /site/nvidia/cublas/lib")
        with mock.patch.dict(os.environ, LD_LIBRARY_PATH=f"/before::{self.root}/cuda"):
            self.assertEqual(host.find_cuda(str(python), BUNDLE)["LD_LIBRARY_PATH"], f"{self.root}/cuda:/before")
            # A wrong --python is told before it is needed: for PyTorch.
            with self.assertRaisesRegex(Failed, "--python=/no/python cannot be run"):
                host.find_cuda("/no/python", BUNDLE)

    def test_libraries_that_a_program_has_mapped_and_their_versions(self):
        source = "#include <stddef.h>\nsize_t cublasLtGetVersion(void) { return 130100; }\n"
        nccl = "int ncclGetVersion(int* version) { *version = 22809; return 0; }\n"
        for name, text in (("libcublasLt.so.13", source), ("libnccl.so.2", nccl)):
            (self.root / "source.c").write_text(text)
            subprocess.run(["cc", "-shared", "-o", self.root / name, self.root / "source.c"], check=True)
        environment = dict(os.environ, LD_LIBRARY_PATH=str(self.root))
        code = "import ctypes; ctypes.CDLL('libcublasLt.so.13'); print(flush=True); input()"
        with subprocess.Popen([sys.executable, "-c", code], env=environment, text=True, stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE) as program:
            program.stdout.readline()
            mapped = libraries.mapped(program.pid)
            program.communicate("\n")
        path = str(self.root / "libcublasLt.so.13")
        self.assertEqual(mapped, {"libcublasLt.so.13": path})
        asked = libraries.versions([path, "libnccl.so.2", "libnone.so"], environment)
        self.assertEqual(asked[path], {"version": 130100, "path": path})
        self.assertEqual(asked["libnccl.so.2"], {"version": 22809, "path": str(self.root / "libnccl.so.2")})
        self.assertIn("libnone.so", asked["libnone.so"]["error"])
        self.assertEqual(libraries.found(environment)["libnccl.so.2"]["version"], 22809)

    def test_the_attention_that_a_configuration_means(self):
        for cudnn, capability, environment, kernels in (
                (91900, "9.0", {}, "cuDNN"), (91900, "8.6", {}, "cuDNN"), (91001, "9.0", {}, "flash"),
                (91900, "10.0", {}, "flash"), (None, "9.0", {}, "flash"),
                (91900, "9.0", {"LOCKSTEP_ATTENTION": "flash"}, "flash"),
                (None, "9.0", {"LOCKSTEP_ATTENTION": "cudnn"}, "cuDNN"),
                (91900, "9.0", {"LOCKSTEP_ATTENTION": "plain"}, "plain")):
            there = {"libcudnn.so.9": {"version": cudnn, "path": "/x"}} if cudnn else {}
            with mock.patch.object(libraries, "found", return_value=there):
                self.assertEqual(libraries.expected_attention({"capability": capability}, environment), kernels)


if __name__ == "__main__":
    unittest.main()
