// Run folders of earlier versions load and continue. Each folder of testdata/golden_runs is what
// the named commit's train_gpt left when it was killed after step 12 of 12, before the checkpoint
// of that step was written: the newest checkpoint is of step 8, metrics.jsonl has all steps. They
// are never regenerated: a version that cannot read them breaks its users' runs.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <sstream>

#include "core/io/file.h"
#include "core/io/json.h"
#include "core/io/safetensors.h"
#include "models/checkpoint/checkpoint.h"
#include "models/gpt/hf/hf_format.h"
#include "models/train/run_model.h"
#include "models/train/run_notes.h"
#include "models/train/run_setup.h"
#include "tests/subprocess.h"

namespace lockstep::models {
namespace {

using testing::HasSubstr;

const std::string kFolder = "tests/testdata/golden_runs";
constexpr int64_t kSteps = 12, kCheckpoint = 8;

struct Golden {
  const char* name;
  // For a resumed step's loss, in nats: the bits of products may change between versions, here of
  // f32 or of bf16.
  double tolerance;
};
std::ostream& operator<<(std::ostream& out, const Golden& g) { return out << g.name; }

// Step -> the line of metrics.jsonl.
std::map<int64_t, Json> Metrics(const std::string& run) {
  std::map<int64_t, Json> lines;
  std::istringstream in(ReadFile(JoinPath(run, "metrics.jsonl")));
  for (std::string line; std::getline(in, line);) {
    const auto j = Json::parse(line);
    EXPECT_TRUE(lines.emplace(j["step"].get<int64_t>(), j).second) << line;
  }
  return lines;
}

class GoldenRun : public testing::TestWithParam<Golden> {
 protected:
  // A writable copy, with the link that test data cannot contain.
  GoldenRun() : run_(JoinPath(testing::TempDir(), StrCat("golden_", GetParam().name))) {
    const std::string original = JoinPath(kFolder, GetParam().name);
    RemoveTree(run_);
    for (const auto& entry : std::filesystem::recursive_directory_iterator(original)) {
      if (entry.is_directory()) continue;
      // Lexically, because test data may be links.
      const std::string to = JoinPath(run_, entry.path().lexically_relative(original).string());
      MakeDirectories(ParentPath(to));
      WriteFileAtomically(to, ReadFile(entry.path().string()));
    }
    ReplaceSymlink("checkpoints/step-00000008", JoinPath(run_, "latest"));
  }

  const std::string run_;
};

// Checks that what was loaded from a file and saved again equals the file, tensor by tensor.
void ExpectSameTensors(const std::string& file, std::vector<SafetensorsItem> loaded) {
  const SafetensorsFile expected = SafetensorsFile::Open(file);
  ASSERT_EQ(expected.entries().size(), loaded.size()) << file;
  for (const SafetensorsItem& item : loaded) {
    const auto entry =
        std::ranges::find(expected.entries(), item.name, [](const auto& e) { return e.name; });
    ASSERT_NE(entry, expected.entries().end()) << item.name << " is not in " << file;
    EXPECT_EQ(entry->dtype(), item.dtype) << item.name;
    EXPECT_EQ(entry->shape, item.shape) << item.name;
    const Tensor tensor = item.produce();
    EXPECT_TRUE(
        std::ranges::equal(entry->bytes, std::span(static_cast<const std::byte*>(tensor.raw_data()),
                                                   static_cast<size_t>(tensor.bytes()))))
        << item.name;
  }
}

TEST_P(GoldenRun, ItsConfigurationWeightsAndStateLoadAsTheyAre) {
  const std::string file = JoinPath(run_, "config.toml");
  RunConfig config;
  Options options({.name = "train_gpt", .summary = ""});
  AddRunOptions(options, config);
  options.ParseToml(ReadFile(file), file);
  EXPECT_EQ(config.train.steps, kSteps);
  EXPECT_EQ(config.optim.name, GetParam().name);
  config.out_dir = run_;
  const RunStart start = PrepareRunFolder(
      config, [](const std::string& text) { FAIL() << text; }, ChangesOfPast);
  EXPECT_EQ(start.step, kCheckpoint);
  const RunSetup setup = PrepareRun(options, config, start, kCpu, 1);
  const TrainerState state = ReadTrainerState(*start.checkpoint);
  EXPECT_EQ(state.data_fingerprint, setup.dataset.fingerprint);
  EXPECT_EQ(state.tokens_seen, kCheckpoint * setup.tokens_per_step);
  EXPECT_EQ(state.last_loss, Metrics(run_).at(kCheckpoint)["loss"]);
  const auto model = std::make_unique<Gpt>(setup.model);
  FillModel(setup, *model);
  const auto optimizer = MakeOptimizer(setup, *model, /*rank=*/0);
  std::vector<SafetensorsItem> items;
  for (const auto& [name, tensor] : optimizer->NamedState()) {
    items.push_back(SafetensorsItem::Of(name, tensor));
  }
  ExpectSameTensors(JoinPath(*start.checkpoint, "model.safetensors"), ToHfTensors(*model));
  ExpectSameTensors(JoinPath(*start.checkpoint, "optimizer.safetensors"), items);
}

TEST_P(GoldenRun, ItIsSampledFrom) {
  const Result sample = RunProgram({"models/sample_gpt", "--checkpoint=" + run_, "--prompt=The ",
                                    "--tokens=20", "--threads=1", "--device=cpu"});
  ASSERT_EQ(sample.exit_code, 0) << sample;
  EXPECT_THAT(sample.out, testing::StartsWith("The "));
  EXPECT_GT(sample.out.size(), 20u);
}

TEST_P(GoldenRun, ItContinuesWithItsOwnConfiguration) {
  const auto before = Metrics(run_);
  const Result run =
      RunProgram({"models/train_gpt", JoinPath(run_, "config.toml"), "--out_dir=" + run_});
  ASSERT_EQ(run.exit_code, 0) << run;
  EXPECT_THAT(run.out, HasSubstr("(step 8)"));
  const auto after = Metrics(run_);
  ASSERT_EQ(after.size(), before.size());
  for (const auto& [step, line] : before) {
    if (step <= kCheckpoint) {
      EXPECT_EQ(after.at(step), line) << "lines recorded before must not change";
      continue;
    }
    for (const char* key : {"loss", "val_loss"}) {
      if (!line.contains(key)) continue;
      EXPECT_NEAR(double{after.at(step)[key]}, double{line[key]}, GetParam().tolerance)
          << key << " of step " << step;
    }
  }
  EXPECT_TRUE(PathExists(JoinPath(run_, "checkpoints/step-00000012/DONE")));
  EXPECT_TRUE(PathExists(JoinPath(run_, "report.html")));
}

INSTANTIATE_TEST_SUITE_P(OfD1b421f, GoldenRun,
                         testing::Values(Golden{"adamw", 1e-5}, Golden{"muon", 4e-3}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace lockstep::models
