// The state of a run whose ranks have different parts of it, from the memory of those that are
// left. Ranks are threads here.
#include "models/train/elastic/state_copies.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>

#include "dist/shard/fully_shard.h"
#include "optim/adamw.h"
#include "tests/dist/in_process.h"
#include "tests/message_of.h"
#include "tests/models/training.h"

namespace lockstep::models {
namespace {

using dist::ProcessGroup;
using testing::HasSubstr;
using Processes = std::vector<std::unique_ptr<StateCopies>>;

constexpr int64_t kBegan = 2;

// Numbers that depend on the tensor's name and the step only, among them -0 and the smallest.
Tensor Filled(const std::string& name, const Shape& shape, DType dtype, int64_t step) {
  std::vector<double> values(static_cast<size_t>(shape.numel()));
  double x = static_cast<double>(name.size() + name.back()) + static_cast<double>(step);
  for (double& v : values) v = std::sin(x += 0.7);
  if (!values.empty()) values[0] = -0.0;
  if (values.size() > 1) values[1] = 1e-45;
  return Tensor::FromVector<double>(values, shape).To(dtype);
}

bool SameBits(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && a.dtype() == b.dtype() &&
         (a.numel() == 0 || std::memcmp(a.raw_data(), b.raw_data(), a.bytes()) == 0);
}

// A model and its optimizer, sharded across the group; null: whole.
struct Rank {
  explicit Rank(ProcessGroup* group, DType dtype = DType::kF32) : model(SmallGpt(0)) {
    if (group != nullptr) sharded.emplace(group, model);
    model.Materialize(kCpu, 3, dtype);
    optimizer = std::make_unique<optim::AdamW>(model.Parameters());
  }
  // As after that step.
  void Fill(int64_t step) {
    for (const auto& [name, p] : model.NamedParameters()) {
      const Tensor whole = Filled(name, p->logical_shape(), p->value().dtype(), step);
      p->value().Detach().CopyFrom(p->PartOf(whole));
    }
    optimizer = std::make_unique<optim::AdamW>(model.Parameters());  // originals of these weights
    NamedTensors state;
    optimizer->ForEachState([&](const std::string& name, const Parameter& p, const Tensor& part) {
      const bool original = name.ends_with(".master");
      const Tensor whole = original ? part : Filled(name, p.logical_shape(), part.dtype(), step);
      state.emplace_back(name, original ? part : p.PartOf(whole));
    });
    optimizer->LoadState(state);
  }
  void ExpectFilled(int64_t step) {
    for (const auto& [name, p] : model.NamedParameters()) {
      const Tensor whole = Filled(name, p->logical_shape(), p->value().dtype(), step);
      EXPECT_TRUE(SameBits(p->value().Detach(), p->PartOf(whole).Contiguous())) << name;
    }
    optimizer->ForEachState([&](const std::string& name, const Parameter& p, const Tensor& part) {
      if (name.ends_with(".master")) return;  // LoadState has compared it with the weights
      const Tensor whole = Filled(name, p.logical_shape(), part.dtype(), step);
      EXPECT_TRUE(SameBits(part, p.PartOf(whole).Contiguous())) << name;
    });
  }

  Gpt model;
  std::optional<dist::FullyShard> sharded;
  std::unique_ptr<optim::AdamW> optimizer;
};

std::vector<int> Numbers(int n) {
  std::vector<int> numbers(static_cast<size_t>(n));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

// A world of these processes, which goes on from what they have, or begins if they have nothing,
// and ends after so many more steps. Returns that with which it began.
int64_t Live(Processes& processes, int64_t epoch, int64_t steps, DType dtype = DType::kF32) {
  int64_t began = kBegan;
  std::string lost;
  dist::RunInProcess(static_cast<int>(processes.size()), [&](ProcessGroup& group) {
    StateCopies& copies = *processes[static_cast<size_t>(group.rank())];
    std::string lost_here;
    const TrainerState* const from = copies.Agree(&group, kBegan, &lost_here);
    if (group.rank() == 0) lost = lost_here;
    if (!lost_here.empty()) return;  // not thrown yet, which would end the others' agreement
    int64_t step = from != nullptr ? from->step : kBegan;
    if (group.rank() == 0) began = step;
    Rank rank(&group, dtype);
    if (from != nullptr) {
      copies.Load(&group, rank.model);
      rank.optimizer = std::make_unique<optim::AdamW>(rank.model.Parameters());
      copies.Load(&group, *rank.optimizer);
      rank.ExpectFilled(step);
    }
    const auto own = group.Duplicate("copies");
    const auto in_world = copies.Enter(own.get(), epoch, Numbers(group.size()));
    for (; steps > 0 && step <= began + steps; ++step) {
      rank.Fill(step);
      copies.Copy({.step = step}, rank.model, *rank.optimizer);
      copies.Confirm();
    }
    rank.Fill(step);  // an update that is not copied any more
  });
  if (!lost.empty()) throw Error(lost);
  return began;
}

Processes Started(int n) {
  Processes processes;
  for (int i = 0; i < n; ++i) processes.push_back(std::make_unique<StateCopies>(kCpu));
  return processes;
}

TEST(StateCopies, AnyRankMayEndAndAnyNumberGoesOn) {
  for (const int ranks : {2, 3, 5}) {
    for (const int dead : {0, ranks / 2}) {
      for (const int joining : {0, 1, 2}) {
        Processes processes = Started(ranks);
        EXPECT_EQ(Live(processes, 1, 3), kBegan);
        processes.erase(processes.begin() + dead);
        for (auto& p : Started(joining)) processes.push_back(std::move(p));
        const int64_t last = kBegan + 3;
        EXPECT_EQ(Live(processes, 2, 0), last) << ranks << " ranks without " << dead;
        // The next world has the parts of the first one still, which the second has not replaced.
        if (joining == 2) processes.pop_back();
        EXPECT_EQ(Live(processes, 3, 1), last);
        EXPECT_EQ(Live(processes, 4, 0), last + 1);
      }
    }
  }
}

TEST(StateCopies, SixteenBitWeightsWithOriginals) {
  Processes processes = Started(4);
  Live(processes, 1, 2, DType::kBF16);
  processes.erase(processes.begin());
  EXPECT_EQ(Live(processes, 2, 0, DType::kBF16), kBegan + 2);
}

TEST(StateCopies, APartThatIsLostIsNamed) {
  Processes processes = Started(4);
  Live(processes, 1, 1);
  // Rank 2 had the copy of rank 1's part.
  processes.erase(processes.begin() + 1, processes.begin() + 3);
  const std::string error = test::MessageOf<Error>([&] { Live(processes, 2, 0); });
  EXPECT_THAT(error, testing::AllOf(HasSubstr("step 3"), HasSubstr("part 2 of its 4")));
  EXPECT_EQ(processes[0]->step(), -1) << "all begin again";
}

TEST(StateCopies, ARunThatHadMadeNoStepBeginsAgain) {
  Processes processes = Started(2);
  dist::RunInProcess(2, [&](ProcessGroup& group) {
    // Only rank 0 has copied, and to no other.
    StateCopies& copies = *processes[static_cast<size_t>(group.rank())];
    const auto in_world = copies.Enter(nullptr, 1, {group.rank(), 1});
    Rank rank(nullptr);
    if (group.rank() == 0) copies.Copy({.step = kBegan}, rank.model, *rank.optimizer);
  });
  EXPECT_EQ(processes[0]->step(), kBegan);
  processes.erase(processes.begin() + 1);
  std::string lost;
  EXPECT_EQ(processes[0]->Agree(nullptr, kBegan, &lost), nullptr);
  EXPECT_EQ(lost, "");
  EXPECT_EQ(processes[0]->step(), -1);
}

// Ranks of two copies of a model, of which one has ended its step and the others have not.
TEST(StateCopies, TheStepThatAllPartsHaveIsTheOneToGoOnFrom) {
  Processes processes = Started(4);
  const auto in_world = [&](const std::function<void(ProcessGroup&, StateCopies&)>& f) {
    dist::RunInProcess(std::ssize(processes), [&](ProcessGroup& group) {
      f(group, *processes[static_cast<size_t>(group.rank())]);
    });
  };
  in_world([&](ProcessGroup& group, StateCopies& copies) {
    const auto own = group.Duplicate("copies");
    const auto entered = copies.Enter(own.get(), 1, {0, 1, 0, 1});
    Rank rank(nullptr);
    copies.Copy({.step = 5}, rank.model, *rank.optimizer);
    copies.Confirm();
    // Parts are not passed on, so a rank needs no other for the next one.
    if (group.rank() != 1) copies.Copy({.step = 6}, rank.model, *rank.optimizer);
  });
  EXPECT_EQ(processes[0]->step(), 6);
  EXPECT_EQ(processes[1]->step(), 5);
  processes.pop_back();
  in_world([&](ProcessGroup& group, StateCopies& copies) {
    std::string lost;
    const TrainerState* const state = copies.Agree(&group, kBegan, &lost);
    ASSERT_NE(state, nullptr);
    EXPECT_EQ(state->step, 5);
  });
}

}  // namespace
}  // namespace lockstep::models
