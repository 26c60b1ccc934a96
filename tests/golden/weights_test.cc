// f32 runs on the CPU have the same bits with every instruction set, compiler and C library: those
// of the table below. A change that alters them says so in the changelog, and replaces the table by
// what the failing test prints.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <span>

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/safetensors.h"
#include "core/io/sha256.h"
#include "core/system/instruction_set.h"
#include "tests/subprocess.h"

namespace lockstep {
namespace {

using Arguments = std::vector<std::string>;

struct Golden {
  const char* name;
  Arguments arguments;
  const char* hash;  // of the weights and the optimizer's state
};
std::ostream& operator<<(std::ostream& out, const Golden& g) { return out << g.name; }

const std::vector<Golden> kRuns = {
    {"gpt2",
     {"--model.bias=true", "--model.dropout=0.1", "--train.grad_accum=2"},
     "22e6588312719626"},
    {"llama",
     {"--model.norm=rms_norm", "--model.activation=swiglu", "--model.position=rope",
      "--model.n_kv_head=2", "--model.tie_embeddings=false"},
     "a4f250402bc1c00f"},
    {"mixture", {"--model.n_expert=4", "--model.n_expert_used=2"}, "d7521ca6ade3c498"},
    {"lora", {"--init_from=BASE", "--lora.rank=4"}, "3bc51d570e5a2c24"},
    {"qlora",
     {"--init_from=BASE", "--lora.rank=4", "--lora.base=nf4", "--virtual.cp=2",
      "--dist.reduction=ordered"},
     "b2ae84d9b8775847"},
    {"qlora_cp2",
     {"--init_from=BASE", "--lora.rank=4", "--lora.base=nf4", "--nproc=2", "--parallel.cp=2",
      "--dist.reduction=ordered"},
     "b2ae84d9b8775847"},
    {"tp2", {"--nproc=2", "--parallel.tp=2", "--dist.reduction=ordered"}, "36ddc89277c98543"},
    {"cp2", {"--nproc=2", "--parallel.cp=2", "--dist.reduction=ordered"}, "af3bd8842aba58d3"},
    {"pp2",
     {"--nproc=2", "--parallel.pp=2", "--train.grad_accum=2", "--optim.name=muon"},
     "76a3fdb3a163ed0f"},
    {"bf16_portable",
     {"--train.precision=bf16", "--train.numerics=portable", "--model.bias=true"},
     "ff5d0906219214e7"},
    {"ranks2",
     {"--nproc=2", "--train.global_batch_size=16", "--dist.reduction=ordered"},
     "bcd010004e992d41"},
};

// The hash of all tensors below a folder.
std::string HashOf(const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path().string());
  }
  std::ranges::sort(files);
  Sha256 hash;
  for (const std::string& path : files) {
    const SafetensorsFile file = SafetensorsFile::Open(path);
    for (const auto& tensor : file.entries()) {
      hash.Update(std::as_bytes(std::span(tensor.name)));
      hash.Update(tensor.bytes);
    }
  }
  return hash.HexDigest().substr(0, 16);
}

// The names of the CPU's instruction sets.
std::vector<std::string> InstructionSets() {
  std::vector<std::string> names;
  for (auto set = InstructionSet::kAvx2; set <= CpuInstructionSet();
       set = static_cast<InstructionSet>(static_cast<int>(set) + 1)) {
    names.push_back(ToString(set));
  }
  return names;
}

Arguments Train(const std::string& out, const Arguments& arguments) {
  Arguments all = {"models/train_gpt",       "--out_dir=" + out,        "--device=cpu",
                   "--train.batch_size=4",   "--train.steps=8",         "--train.eval_every=0",
                   "--train.eval_batches=1", "--train.sample_tokens=0", "--checkpoint.every=4",
                   "--checkpoint.keep=2",    "--optim.warmup=2"};
  // The model of adapters is that of what they begin from.
  if (!std::ranges::any_of(arguments, [](const auto& a) { return a.starts_with("--init_from"); })) {
    all.insert(all.end(), {"--model.block_size=32", "--model.n_layer=2", "--model.n_head=4",
                           "--model.n_embd=64"});
  }
  all.insert(all.end(), arguments.begin(), arguments.end());
  return all;
}

class GoldenWeights : public testing::TestWithParam<Golden> {
 protected:
  const std::string folder_ = JoinPath(testing::TempDir(), StrCat("golden_", GetParam().name));
  GoldenWeights() { RemoveTree(folder_); }
  ~GoldenWeights() override { RemoveTree(folder_); }
};

TEST_P(GoldenWeights, HoldWithEveryInstructionSet) {
  Arguments arguments = GetParam().arguments;
  if (arguments[0] == "--init_from=BASE") {
    arguments[0] = "--init_from=" + JoinPath(folder_, "base");
    const Result run = RunProgram(Train(JoinPath(folder_, "base"), kRuns[0].arguments));
    ASSERT_EQ(run.exit_code, 0) << run;
  }
  for (const std::string& set : InstructionSets()) {
    const std::string out = JoinPath(folder_, set);
    const Result run = RunProgram(Train(out, arguments), {{"LOCKSTEP_MAX_CPU_ISA", set}});
    ASSERT_EQ(run.exit_code, 0) << run;
    EXPECT_EQ(HashOf(JoinPath(out, "checkpoints/step-00000008")), GetParam().hash) << set;
  }
}

INSTANTIATE_TEST_SUITE_P(Runs, GoldenWeights, testing::ValuesIn(kRuns),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(GoldenWeightsOfVision, HoldWithEveryInstructionSet) {
  for (const std::string& set : InstructionSets()) {
    const std::string out = JoinPath(testing::TempDir(), "golden_vision");
    MakeDirectories(out);
    const Result run =
        RunProgram({"models/examples/train_cnn", out}, {{"LOCKSTEP_MAX_CPU_ISA", set}});
    ASSERT_EQ(run.exit_code, 0) << run;
    EXPECT_EQ(HashOf(out), "2adf6b51099ab196") << set;
    RemoveTree(out);
  }
}

TEST(GoldenWeightsOfContinuing, OnAnotherInstructionSet) {
  const std::string out = JoinPath(testing::TempDir(), "golden_continuing");
  RemoveTree(out);
  const auto run = [&](const std::string& set) {
    const Result result =
        RunProgram(Train(out, kRuns[0].arguments), {{"LOCKSTEP_MAX_CPU_ISA", set}});
    ASSERT_EQ(result.exit_code, 0) << result;
  };
  const std::string end = JoinPath(out, "checkpoints/step-00000008");
  run(ToString(CpuInstructionSet()));
  const std::string undisturbed = HashOf(end);
  RemoveTree(end);
  RemoveTree(JoinPath(out, "DONE"));
  run("avx2");
  EXPECT_EQ(HashOf(end), undisturbed);
  RemoveTree(out);
}

}  // namespace
}  // namespace lockstep
