#include "tests/options/option_runs.h"

#include <algorithm>
#include <sstream>

#include "core/io/file.h"
#include "data/token_file.h"

namespace lockstep {

std::string TrainingRun::Numbers() const {
  std::string numbers;
  for (const Json& line : Lines("metrics.jsonl"))
    for (const char* field : {"loss", "grad_norm", "val_loss"})
      if (line.contains(field)) numbers += line[field].dump() + " ";
  return numbers;
}

std::vector<Json> TrainingRun::Lines(const std::string& file) const {
  std::vector<Json> lines;
  if (!PathExists(folder + "/" + file)) return lines;
  std::istringstream in(ReadFile(folder + "/" + file));
  for (std::string line; std::getline(in, line);) lines.push_back(Json::parse(line));
  return lines;
}

size_t TrainingRun::Validations() const {
  size_t n = 0;
  for (const Json& line : Lines("metrics.jsonl")) n += line.contains("val_loss");
  return n;
}

std::vector<int> TrainingRun::Checkpoints() const {
  std::vector<int> steps;
  for (const std::string& name : ListDirectory(folder + "/checkpoints"))
    if (name.starts_with("step-")) steps.push_back(std::stoi(name.substr(5)));
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::string OptionRuns::folder_;
std::map<Arguments, TrainingRun> OptionRuns::runs_;

void OptionRuns::SetUpTestSuite() {
  folder_ = JoinPath(testing::TempDir(), "options");
  RemoveTree(folder_);
  MakeDirectories(folder_);
  std::string text;
  for (int i = 0; i < 400; ++i) text += "abcdefgh ijkl\n"[i * i % 14];
  WriteFileAtomically(Path("other.txt"), text);
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 400; ++i) tokens.push_back(i % 11 == 0 ? 50256 : i * i % 14);
  data::WriteTokenFile(Path("documents.bin"), data::TokenFormat::kLlmcGpt2, tokens);
  runs_.clear();
}

std::string OptionRuns::Path(const std::string& name) { return JoinPath(folder_, name); }

const TrainingRun& OptionRuns::Train(const Arguments& more) {
  const auto [it, fresh] = runs_.try_emplace(more);
  if (fresh) {
    TrainingRun& run = it->second;
    run.folder = Path("run" + std::to_string(runs_.size()));
    Arguments all = {"models/train_gpt",     "--model.n_layer=1",
                     "--model.n_head=2",     "--model.n_embd=16",
                     "--threads=1",          "--model.block_size=16",
                     "--train.batch_size=4", "--train.steps=6",
                     "--optim.warmup=2",     "--checkpoint.every=2",
                     "--train.eval_every=3", "--train.eval_batches=1",
                     "--train.log_every=2",  "--train.sample_tokens=8"};
    // An option may be given once.
    for (const std::string& argument : more)
      std::erase_if(all, [&](const std::string& a) {
        return a.starts_with(argument.substr(0, argument.find('=') + 1));
      });
    all.insert(all.end(), more.begin(), more.end());
    if (std::none_of(more.begin(), more.end(),
                     [](const std::string& a) { return a.starts_with("--out_dir="); }))
      all.push_back("--out_dir=" + run.folder);
    run.result = RunProgram(all);
    EXPECT_EQ(run.result.exit_code, 0) << testing::PrintToString(all) << run.result.err;
  }
  return it->second;
}

}  // namespace lockstep
