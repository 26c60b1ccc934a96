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
    {"gpt2", {"--model.bias=true", "--model.dropout=0.1", "--train.grad_accum=2"}, ""},
    {"llama",
     {"--model.norm=rms_norm", "--model.activation=swiglu", "--model.position=rope",
      "--model.n_kv_head=2", "--model.tie_embeddings=false"},
     ""},
    {"mixture", {"--mixture.experts=4", "--mixture.top_k=2"}, ""},
    {"lora", {"--lora.rank=4"}, ""},
    {"qlora", {"--lora.rank=4", "--lora.base=nf4", "--virtual.cp=2"}, ""},
    {"tp2", {"--nproc=2", "--parallel.tp=2", "--dist.reduction=ordered"}, ""},
    {"cp2", {"--nproc=2", "--parallel.cp=2", "--dist.reduction=ordered"}, ""},
    {"pp2", {"--nproc=2", "--parallel.pp=2", "--train.grad_accum=2", "--optim.name=muon"}, ""},
    {"ranks2", {"--nproc=2", "--train.global_batch_size=16", "--dist.reduction=ordered"}, ""},
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
  Arguments all = {"models/train_gpt",      "--out_dir=" + out,       "--device=cpu",
                   "--model.block_size=32", "--model.n_layer=2",      "--model.n_head=4",
                   "--model.n_embd=64",     "--train.batch_size=4",   "--train.steps=8",
                   "--train.eval_every=0",  "--train.eval_batches=1", "--train.sample_tokens=0",
                   "--checkpoint.every=4",  "--checkpoint.keep=2",    "--optim.warmup=2",
                   "--train.log_every=8"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  return all;
}

class GoldenWeights : public testing::TestWithParam<Golden> {
 protected:
  const std::string folder_ =
      JoinPath(testing::TempDir(), StrCat("golden_weights_", GetParam().name));
  GoldenWeights() { RemoveTree(folder_); }
  ~GoldenWeights() override { RemoveTree(folder_); }
};

TEST_P(GoldenWeights, HoldWithEveryInstructionSet) {
  for (const std::string& set : InstructionSets()) {
    const std::string out = JoinPath(folder_, set);
    const Result run =
        RunProgram(Train(out, GetParam().arguments), {{"LOCKSTEP_MAX_CPU_ISA", set}});
    ASSERT_EQ(run.exit_code, 0) << run;
    EXPECT_EQ(HashOf(JoinPath(out, "checkpoints/step-00000008")), GetParam().hash) << set;
  }
}

INSTANTIATE_TEST_SUITE_P(Runs, GoldenWeights, testing::ValuesIn(kRuns),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(GoldenWeightsOfVision, HoldWithEveryInstructionSet) {
  for (const std::string& set : InstructionSets()) {
    const std::string out = JoinPath(testing::TempDir(), "golden_weights_vision");
    MakeDirectories(out);
    const Result run =
        RunProgram({"models/examples/train_cnn", out}, {{"LOCKSTEP_MAX_CPU_ISA", set}});
    ASSERT_EQ(run.exit_code, 0) << run;
    EXPECT_EQ(HashOf(out), "") << set;
    RemoveTree(out);
  }
}

TEST(GoldenWeightsOfContinuing, OnAnotherInstructionSet) {
  const std::string out = JoinPath(testing::TempDir(), "golden_weights_continuing");
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
