// Ranks, which are threads here, that save checkpoints together.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "dist/mesh.h"
#include "dist/shard/fully_shard.h"
#include "models/checkpoint/checkpoint.h"
#include "models/checkpoint/checkpoint_saver.h"
#include "models/checkpoint/checkpoint_store.h"
#include "optim/adamw.h"
#include "tests/dist/in_process.h"
#include "tests/models/temp_folder.h"
#include "tests/models/training.h"

namespace lockstep::models {

// How a model is spread over ranks: `copies` times over `shards` ranks each.
struct Plan {
  int shards = 1, copies = 1;
  int ranks() const { return shards * copies; }
};
inline std::ostream& operator<<(std::ostream& out, const Plan& p) {
  return out << p.copies << " copies over " << p.shards << " ranks each";
}

inline GptConfig CutGpt() {
  GptConfig config = SmallGpt(0);
  config.n_embd = 76;  // matrices that are cut
  config.bias = true;
  return config;
}

// A model and an optimizer on one rank, whose values are functions of a step.
class Rank {
 public:
  Rank(dist::ProcessGroup* all, const Plan& plan) : model(CutGpt()) {
    if (plan.shards > 1) {
      const dist::Mesh mesh({.shard = plan.shards}, all->rank(), all->size());
      const auto group = [&](const char* axis) {
        return all->Split(mesh.GroupName({axis}), mesh.RanksAlong({axis}));
      };
      shard_ = group("shard");
      replicate_ = group("replicate");
      sharded_ = std::make_unique<dist::FullyShard>(
          dist::ShardGroups(all, shard_.get(), replicate_.get()), model);
      share = {.parts = true, .copy = {all->rank() / plan.shards, plan.copies}};
    }
    model.Materialize(kCpu, 1);
    optimizer = std::make_unique<optim::AdamW>(model.Parameters());
    if (all) share.rank = all->rank();
    share.ranks = plan.ranks();
  }

  // The same values of the same elements on all ranks.
  void SetTo(int64_t step) {
    for (const auto& p : model.Parameters()) Fill(*p, p->part(), step);
    optimizer->ForEachState([&](const std::string& name, const Parameter& p, const Tensor& part) {
      Fill(p, part, name.ends_with("avg") ? step + 1000 : step + 2000);
    });
  }
  static void Fill(const Parameter& p, const Tensor& part, int64_t step) {
    std::vector<float> values(static_cast<size_t>(p.logical_shape().numel()));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(step) + static_cast<float>(i) / 65536;
    }
    part.Detach().CopyFrom(p.PartOf(Tensor::FromVector(values, p.logical_shape())));
  }

  CheckpointFiles Files(int64_t step, HostSnapshot* snapshot) const {
    return CollectCheckpoint({.step = step}, model, *optimizer, nullptr, share, snapshot);
  }

  Gpt model;
  std::unique_ptr<optim::Optimizer> optimizer;
  CheckpointShare share;

 private:
  std::shared_ptr<dist::ProcessGroup> shard_, replicate_;
  std::unique_ptr<dist::FullyShard> sharded_;
};

class SavedRanksTest : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) const { return root_.Path(name); }
  static std::string Folder(const std::string& out, int64_t step) {
    return JoinPath(out, StrCat("checkpoints/step-000000", step));
  }

  // Runs body(rank, saver) on all ranks of a plan. `out_of` and `options_of`: each rank's run
  // folder, and the options of its saver.
  using Body = std::function<void(Rank&, CheckpointSaver&)>;
  static void OnRanks(const Plan& plan, const std::function<std::string(int)>& out_of,
                      const std::function<CheckpointSaverOptions(int)>& options_of,
                      const Body& body) {
    const auto run = [&](dist::ProcessGroup* all) {
      const int number = all ? all->rank() : 0;
      OnRank(all, plan, out_of(number), options_of(number), body);
    };
    if (plan.ranks() == 1) return run(nullptr);
    dist::RunInProcess(plan.ranks(), [&](dist::ProcessGroup& all) { run(&all); });
  }
  // The part of it that is a rank's of this group.
  static void OnRank(dist::ProcessGroup* all, const Plan& plan, const std::string& out,
                     CheckpointSaverOptions options, const Body& body) {
    const auto group = all ? all->Duplicate("checkpoints") : nullptr;
    Rank rank(all, plan);
    CheckpointStore store(out, {.keep = 3, .warn = {}});
    options.group = group.get();
    CheckpointSaver saver(store, options);
    body(rank, saver);
  }
  static void OnRanks(const Plan& plan, const std::function<std::string(int)>& out_of, bool async,
                      const Body& body) {
    OnRanks(
        plan, out_of, [async](int) { return CheckpointSaverOptions{.async = async}; }, body);
  }
  static void OnRanks(const Plan& plan, const std::string& out, bool async, const Body& body) {
    OnRanks(
        plan, [&](int) { return out; }, async, body);
  }
  static void Save(const Plan& plan, const std::string& out, bool async,
                   const std::vector<int64_t>& steps) {
    OnRanks(plan, out, async, Saves(async, steps));
  }
  // Saves these steps one after another, and runs `begun` after each call of Save.
  static Body Saves(bool async, const std::vector<int64_t>& steps, const Body& begun = {}) {
    return [=](Rank& rank, CheckpointSaver& saver) {
      for (const int64_t step : steps) {
        rank.SetTo(step);
        saver.Wait();
        saver.Save([&](HostSnapshot* to) { return rank.Files(step, to); });
        if (begun) begun(rank, saver);
        if (async) rank.SetTo(0);  // as the next update does
      }
      saver.Wait();
    };
  }

  // Whether a rank of any plan that loads the folder holds what the step's ranks held.
  static void ExpectStep(const std::string& folder, int64_t step, const Plan& plan) {
    OnRanks(plan, "nowhere", /*async=*/false, [&](Rank& rank, CheckpointSaver&) {
      LoadWeights(folder, rank.model);
      LoadOptimizerState(folder, *rank.optimizer);
      const auto values = [&] {
        std::vector<std::vector<float>> all;
        for (const auto& p : rank.model.Parameters()) all.push_back(p->part().ToVector<float>());
        for (const auto& [name, t] : rank.optimizer->NamedState()) {
          all.push_back(t.ToVector<float>());
        }
        return all;
      };
      const auto loaded = values();
      rank.SetTo(step);
      EXPECT_TRUE(loaded == values()) << folder << ", " << plan;
    });
  }

  const test::TempFolder root_{"lockstep_saved_ranks_test"};
};

// One file with one number, which `produce` makes when it is written.
inline CheckpointFiles FilesOf(int rank, int64_t step, std::function<void()> produce) {
  CheckpointFiles files{.step = step};
  files.tensors.push_back({StrCat("part-", rank, ".safetensors"),
                           {SafetensorsItem::Of("x", DType::kF32, {1}, [produce] {
                             produce();
                             return Tensor::Full({1}, 1, DType::kF32);
                           })}});
  return files;
}

}  // namespace lockstep::models
