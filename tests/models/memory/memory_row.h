// Runs of train_gpt whose memory is planned, and measured by the allocator.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ostream>
#include <sstream>
#include <string>
#include <vector>

#include "core/io/file.h"
#include "core/io/json.h"
#include "models/memory/memory_plan.h"
#include "models/train/run_setup.h"
#include "tests/models/parsed_run.h"
#include "tests/subprocess.h"

namespace lockstep::models {

using Arguments = std::vector<std::string>;

struct MemoryRow {
  const char* name;
  int ranks;
  bool gpu;
  Arguments model, options;
};
inline std::ostream& operator<<(std::ostream& out, const MemoryRow& row) { return out << row.name; }

inline const Arguments kGpt2 = {"--model.n_layer=4", "--model.n_head=4", "--model.n_embd=128"};
inline const Arguments kGpt2Untied = {"--model.n_layer=3",      "--model.n_head=4",
                                      "--model.n_embd=96",      "--model.tie_embeddings=false",
                                      "--model.bias=true",      "--model.dropout=0.1",
                                      "--model.vocab_size=2000"};
inline const Arguments kLlama = {"--model.n_layer=4",     "--model.n_head=4",
                                 "--model.n_kv_head=2",   "--model.n_embd=128",
                                 "--model.norm=rms_norm", "--model.activation=swiglu",
                                 "--model.position=rope", "--model.tie_embeddings=false"};
inline const Arguments kLlamaTied = {"--model.n_layer=3",         "--model.n_head=2",
                                     "--model.n_embd=96",         "--model.norm=rms_norm",
                                     "--model.activation=swiglu", "--model.position=rope",
                                     "--model.vocab_size=3000"};
inline constexpr const char* kBf16 = "--train.precision=bf16";
inline constexpr const char* kFp16 = "--train.precision=fp16";
inline constexpr const char* kOrdered = "--dist.reduction=ordered";
inline constexpr const char* kFull = "--parallel.shard=full";
inline constexpr const char* kBlock = "--train.recompute=block";
inline constexpr const char* kOffload = "--train.offload=activations";

// Of each four rows the one that LOCKSTEP_MEMORY_ROWS says, 0 to 3, or all; the second if it says
// nothing.
inline std::vector<MemoryRow> Drawn(const std::vector<MemoryRow>& rows) {
  const char* const which = std::getenv("LOCKSTEP_MEMORY_ROWS");
  if (which != nullptr && std::string(which) == "all") return rows;
  const auto number = static_cast<size_t>(which != nullptr ? std::atoi(which) : 1);
  std::vector<MemoryRow> drawn;
  for (size_t i = number % std::min<size_t>(4, rows.size()); i < rows.size(); i += 4) {
    drawn.push_back(rows[i]);
  }
  return drawn;
}

inline Arguments All(const MemoryRow& row) {
  Arguments all = {"--train.steps=3",
                   "--optim.warmup=1",
                   "--train.eval_every=0",
                   "--train.eval_batches=1",
                   "--train.sample_tokens=0",
                   "--threads=1",
                   "--train.cuda_graphs=false",
                   row.gpu ? "--device=sim" : "--device=cpu",
                   row.gpu ? "--model.block_size=32" : "--model.block_size=64",
                   row.gpu ? "--train.batch_size=6" : "--train.batch_size=8"};
  for (const Arguments* part : {&row.model, &row.options}) {
    all.insert(all.end(), part->begin(), part->end());
  }
  return all;
}

inline MemoryPlan PlanOf(const MemoryRow& row) {
  const ParsedRun run(All(row));
  const Device device = row.gpu ? Device{DeviceType::kCuda, 0} : kCpu;
  return PlanMemory(PrepareRun(run.options, run.config, {}, device, row.ranks));
}

inline std::string Folder(const MemoryRow& row) {
  return JoinPath(testing::TempDir(), StrCat("memory_", row.name));
}

inline Result Train(const MemoryRow& row, const std::string& limit = "8G") {
  RemoveTree(Folder(row));
  Arguments command = {"models/train_gpt", StrCat("--nproc=", row.ranks),
                       "--out_dir=" + Folder(row)};
  if (row.ranks == 1) command.erase(command.begin() + 1);
  for (const std::string& argument : All(row)) command.push_back(argument);
  return RunProgram(command, {{"CUDASIM_DEVICES", StrCat(row.ranks)}, {"CUDASIM_MEMORY", limit}});
}

// The lines of the first rank's metrics.
inline std::vector<Json> Steps(const MemoryRow& row) {
  std::istringstream lines(ReadFile(JoinPath(Folder(row), "metrics.jsonl")));
  std::vector<Json> steps;
  for (std::string line; std::getline(lines, line);) steps.push_back(Json::parse(line));
  return steps;
}
inline Json LastStep(const MemoryRow& row) { return Steps(row).back(); }

inline void Tell(const MemoryRow& row, int64_t planned, double measured) {
  std::printf("%-32s planned %9lld measured %9.0f: %+.2f%%\n", row.name,
              static_cast<long long>(planned), measured,
              100 * (static_cast<double>(planned) / measured - 1));
}

}  // namespace lockstep::models
