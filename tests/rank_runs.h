// Runs of train_gpt on several processes, as users start them.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/io/json.h"
#include "tests/subprocess.h"

namespace lockstep {

// A fixture: each test has a folder of its own.
class RankRuns : public testing::Test {
 protected:
  using Arguments = std::vector<std::string>;
  using Processes = std::vector<std::unique_ptr<Subprocess>>;

  RankRuns();

  std::string Path(const std::string& name) const;

  // The environment of a rank. Each meeting has a folder of its own.
  static std::map<std::string, std::string> Place(int rank, int ranks, const std::string& meeting);
  // train_gpt of a tiny model, with these options in place of the usual ones.
  Arguments Train(const std::string& out, const Arguments& more) const;

  // They meet in a folder, or over TCP, as under a launcher.
  Processes Start(int ranks, const Arguments& arguments, bool over_tcp = false);
  // Each rank with arguments of its own.
  Processes Start(const std::vector<Arguments>& of_rank);
  // Returns the results of all ranks.
  static std::vector<Result> Wait(Processes processes);
  // Kills all ranks once the checkpoint of a step is complete: it may lag behind what they print.
  void KillAfterCheckpoint(Processes processes, const std::string& out, int step) const;
  // Runs to the end without an error.
  std::vector<Result> Run(int ranks, const std::string& out, const Arguments& more);

  // The whole model and optimizer state after a step, however they were saved.
  std::string Bytes(const std::string& out, int step) const;
  std::string Checkpoint(const std::string& out, int step) const;
  std::vector<Json> Metrics(const std::string& out) const;
  // Losses, norms and validation losses, as they were written.
  std::vector<std::string> Numbers(const std::string& out) const;

 private:
  std::string folder_;
  int meetings_ = 0;
};

// "--device=sim", or "--device=cuda" in a build for real GPUs.
std::string GpuOption();

}  // namespace lockstep
