#!/usr/bin/env python3
"""What the slices of tools/gpu_check find."""
import json
import os
import sys
import unittest
from unittest import mock

sys.path[:0] = [os.path.join("tools", "gpu_check"), os.path.join("tests", "tools")]
import gpu_check  # pylint: disable=wrong-import-position
import host
import parts
import ranks
from gpu_check_stand_ins import GPU, LAUNCH, NCU, NO_CUDNN, OPS, TORCH, TRAIN, GpuCheckCase


class SlicesTest(GpuCheckCase):

    def test_cudnns_backward_in_workspaces_that_stay_in_the_cache(self):
        self.program("train_gpt", f"echo $LOCKSTEP_CUDNN_WORKSPACE_MIB >>{self.root}/workspaces\n"
                     + TRAIN.replace('"flash"', '"cuDNN: engine 6"'))
        with mock.patch.object(parts.libraries, "expected_attention", return_value="cuDNN"):
            slices = self.check("--only=" + ",".join(n for n in gpu_check.SLICES if "workspace" in n))[2]
        self.assertEqual({done["state"] for done in slices.values()}, {"passed"})
        self.assertEqual((self.root / "workspaces").read_text().split(), ["24", "48", "96"])

    def test_ops_leave_hashes_of_what_they_computed(self):
        def hashes():
            self.check("--again", "--only=ops/rows")
            return self.archived()["ops-rows/hashes.txt"].splitlines()

        before = hashes()
        self.assertRegex(before[0], "^# .*on simulated GPU, by build 1$")
        self.assertEqual(before[1:], ["softmax.odd/f32 ffffffffffffffff"])
        self.assertEqual(hashes(), before)
        # Also where a test failed.
        self.program("op_test", OPS.replace("18446744073709551615", "255") + "exit 1")
        self.assertEqual(hashes(), [before[0], "softmax.odd/f32 00000000000000ff"])
        self.assertEqual(self.slices()["ops/rows"]["state"], "failed")

    def test_libraries_that_a_gpu_could_use_are_missed(self):
        there = {"libnccl.so.2": {"version": 22809, "path": "/x/libnccl.so.2"}}
        for gpu, ending in ((GPU, "22809"),
                            (dict(GPU, capability="9.0"), "without libcudnn.so.9, which lockstep-cuda.tar.gz has")):
            with mock.patch.object(host, "describe_machine", return_value=gpu), \
                    mock.patch.object(parts.libraries, "found", return_value=there):
                self.assertTrue(self.part("loader")["text"].endswith(ending))

    def test_a_failed_smoke_tells_how_to_find_the_kernel(self):
        self.program("train_gpt", "exit 1")
        self.assertIn("LOCKSTEP_CUDA_SYNC=1", self.part("smoke")["fix"])

    def test_ranks_that_differ_from_accumulation_are_a_failure(self):
        ours = TRAIN + "[[ $* != *grad_accum* ]] || "
        for change, words in (("echo other >$out/latest/model.safetensors", "but the last weights differ"),
                              ("sed -i s/4.5/4.6/ $out/metrics.jsonl", "losses of 2 ranks are [4.5, ")):
            self.program("train_gpt", ours + change)
            self.assertIn(words, self.part("ranks/bits")["text"])

    def test_the_first_failure_of_ranks_is_told(self):
        said = "echo 'launch: the first failure: rank 1: Duplicate GPU'; echo 'launch: after it: rank 0'; exit 1"
        self.program("launch", said)
        part = self.part("ranks/bits")
        self.assertEqual((part["state"], part["text"]), ("failed", "rank 1: Duplicate GPU"))
        self.assertIn("install NCCL 2.20", part["fix"])

    def test_a_failed_rank_that_nobody_names_is_a_failure(self):
        for said, instead, words in (("rank 1 is $word", "something is $word", "nobody said 'rank 0.*rank 1 is gone'"),
                                     ("rank 0 ended with exit code 1", "rank 0 was killed by signal 9",
                                      "nobody said 'rank 0 ended with exit code 1'"),
                                     ("word=stalled", "word=gone", "nobody said 'rank 0.*rank 1 is stalled'"),
                                     ("echo \"[0] step", "exit 3; echo \"", "launch ended before it wrote")):
            self.program("launch", LAUNCH.replace(said, instead))
            self.assertIn(words, self.part("ranks/failures")["text"])
            self.assertIn("dist.heartbeat", self.archived()["ranks-failures/log"])
        self.program("launch", LAUNCH)
        self.program("flight", "echo 'verdict: rank 0 at fault'")
        self.assertIn("the flight records do not say so", self.part("ranks/failures")["text"])

    def test_ranks_that_end_late_are_a_failure(self):
        with mock.patch.object(ranks, "MAX_SECONDS", -1):
            self.assertIn("had ended only", self.part("ranks/failures")["text"])

    def test_ranks_share_a_gpu_as_nccl_allows_it(self):
        self.program("launch", f"env >{self.root}/environment" + LAUNCH)
        self.assertEqual(self.part("ranks/bits")["state"], "passed")
        with_one = (self.root / "launch.runs").read_text().splitlines()[0]
        self.assertRegex(with_one, r"--nproc=2 .* -- sh -c .*LOCAL_RANK=0 NCCL_HOSTID=rank\$RANK.* rank /")
        self.assertIn("NCCL_P2P_DISABLE=1", (self.root / "environment").read_text())
        # With a GPU each, none of this is set.
        self.assertEqual(self.part("ranks/two-gpus")["state"], "passed")
        self.assertNotIn("NCCL_P2P_DISABLE", (self.root / "environment").read_text())
        with mock.patch.object(host, "describe_machine", return_value=GPU):
            self.assertEqual(self.part("ranks/two-gpus")["state"], "skipped")

    def test_does_without_nccl(self):
        why = "NCCL, which training on several GPUs needs, cannot be loaded (x); install libnccl2"
        self.program("launch", f"echo 'train_gpt: {why}'; exit 1")
        part = self.part("ranks/bits")
        self.assertEqual((part["state"], part["text"]), ("skipped", why))

    def test_no_test_that_ran_is_a_failure(self):
        self.program("op_test", "echo '[  PASSED  ] 0 tests.'")
        self.assertEqual(self.part("ops/rows")["text"], "no test ran: [  PASSED  ] 0 tests.")

    def test_no_cudnn_is_no_failure_but_a_wrong_one_is(self):
        self.program("op_test", NO_CUDNN + OPS)
        for reason, state in (("cuDNN cannot be loaded", "skipped"), ("it is used on GPUs", "skipped"),
                              ("its result 0 of a trial is off by nan", "failed"), ("cuDNN has no plan", "failed")):
            with mock.patch.dict(os.environ, REASON=reason):
                part = self.check("--only=ops/rows,cudnn", "--again")[2]
            self.assertEqual((part["ops/rows"]["state"], part["cudnn"]["state"]), ("passed", state), reason)

    def test_cudnn_is_asked_for_what_it_does(self):
        self.program("op_test", "[[ $* == *attention.*/bf16 ]] || REASON='its graphs are made for bf16'\n"
                     "[[ ! $REASON ]] || { " + NO_CUDNN + "}; " + OPS)
        self.assertEqual(self.part("cudnn")["state"], "passed")

    def test_other_weights_are_a_failure(self):
        for option in ("$*", "$(grep -o cuda_graphs <<<$*)", "$LOCKSTEP_CUDA_POISON",
                       "$(cat train_gpt.count; echo x >>train_gpt.count)"):
            self.program("train_gpt", TRAIN.replace("echo weights", f"echo \"{option}\""))
            self.assertIn("differ from the first's", self.part("train/bf16")["text"], option)

    def test_other_losses_are_a_failure(self):
        for loss in ("4.51", "NaN"):
            self.program("torch", TORCH.replace("4.5001", loss))
            self.assertIn("not within 2e-3", self.part("parity/fp32")["text"], loss)
        self.program("torch", TORCH.replace("4 5", "4"))
        self.assertIn("6 and 5 losses of 6 steps", self.part("parity/fp32")["text"])

    def test_bf16_must_be_as_torch_rounds_it(self):
        """PyTorch's losses over 32 tokens are 4.5 in f32 and 4.6 in bf16, so Lockstep's may be 0.0555 from those."""
        rounded = TORCH.replace("4.5001", "'$(if [[ $* == *fp32* ]]; then echo 4.5; else echo 4.6; fi)'")
        self.program("torch", rounded)
        for ours, state in ((4.545, "passed"), (4.655, "passed"), (4.544, "failed"), ("NaN", "failed")):
            self.program("train_gpt", TRAIN.replace("4.5,", f"{ours},"))
            self.assertEqual(self.part("parity/bf16")["state"], state, ours)

    def test_does_without_torch(self):
        self.torch = self.program("torch", "exit 1")
        status, _, slices = self.check("--only=parity,speed/b16,speed/b16-torch")
        states = {name: slices[name]["state"] for name in ("parity/fp32", "speed/b16-torch", "speed/b16")}
        self.assertEqual((status, list(states.values())), (0, ["skipped", "skipped", "passed"]))

    def test_a_peer_that_does_not_compile_is_no_failure(self):
        self.program("torch", TORCH.replace("for step", "[[ $* == *--compile* ]] && { echo no cc; exit 1; }; for step"))
        status, lines, slices = self.check("--only=speed/b8,speed/b8-torch,speed/b8-torch-compiled")
        self.assertEqual(status, 0)
        self.assertIn("speed/b8-torch-compiled skipped: torch exited with 1: no cc", lines)
        self.assertIn("no cc", self.archived()["speed-b8-torch-compiled/log"])
        self.assertIn("b8 is 2.00 times torch's best", lines[2])

    def test_attention_by_other_kernels_than_expected_is_a_failure(self):
        choice = {"op": "attention_forward", "problem": "B16", "kernel": "plain", "why_slow": "heads of 65"}
        told = {"libraries": ["/x/libcublasLt.so.13"], "choices": [dict(choice, op="matmul"), choice]}
        self.program("train_gpt", TRAIN + f"echo '{json.dumps(told)}' >$out/kernels.json")
        self.assertEqual(self.part("speed/b8-fp32")["state"], "passed")
        part = self.part("speed/b16")
        self.assertEqual((part["state"], part["text"]),
                         ("failed", "attention_forward of B16 used plain, not flash: heads of 65"))
        self.assertGreater(part["values"]["tokens_per_second"], 0)
        self.assertIn("speed-b16/run-1/kernels.json", self.archived())
        choice.update(kernel="flash_mma", why_slow="")
        self.program("train_gpt", TRAIN + f"echo '{json.dumps(told)}' >$out/kernels.json")
        part = self.part("speed/b16")
        self.assertEqual(part["values"]["kernels"], {"choices": 2, "slow": [dict(choice, op="matmul", kernel="plain",
                                                                                  why_slow="heads of 65")]})

    def test_kernels_of_the_last_step(self):
        with mock.patch.object(parts.shutil, "which", return_value=str(self.program("ncu", NCU))):
            part = self.part("kernels/ncu")
            self.assertEqual(part["values"]["kernels"], {
                "cuBLASLt": {"ms": 3.0, "launches": 2}, "NormKernel": {"ms": 0.0005, "launches": 1},
                "UpdateKernel": {"ms": 1.4e-05, "launches": 2}})
            self.program("ncu", "echo '==ERROR== ERR_NVGPUCTRPERM: no permission'; exit 1")
            part = self.part("kernels/ncu")
        self.assertEqual((part["state"], part["text"]),
                         ("skipped", "ncu cannot measure here: ERR_NVGPUCTRPERM: no permission"))


if __name__ == "__main__":
    unittest.main()
