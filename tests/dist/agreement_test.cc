#include "dist/groups/agreement.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <array>
#include <mutex>

#include "tests/dist/in_process.h"
#include "tests/dist/toy_model.h"
#include "tests/message_of.h"

namespace lockstep::dist {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::StrEq;

// The error of each rank's call of `f(group)`.
template <class F>
std::vector<std::string> Messages(int ranks, const F& f) {
  std::vector<std::string> messages(ranks);
  RunInProcess(ranks, [&](ProcessGroup& group) {
    messages[group.rank()] = test::MessageOf<ReplicaError>([&] { f(group); });
    group.Barrier()->Synchronize();  // the group is still in step
  });
  return messages;
}

TEST(Agreement, GathersByRank) {
  RunInProcess(3, [](ProcessGroup& group) {
    const std::array<int64_t, 2> mine = {group.rank(), 10 * group.rank()};
    const auto all = GatherValues(group, std::span<const int64_t>(mine));
    ASSERT_EQ(all.size(), 3u);
    for (int64_t r = 0; r < 3; ++r) {
      EXPECT_THAT(all[r], testing::ElementsAre(r, 10 * r));
    }
    const auto texts = GatherTexts(group, std::string(static_cast<size_t>(group.rank()), 'x'), 1);
    EXPECT_THAT(texts, testing::ElementsAre("", "x", "x"));
    EXPECT_EQ(GatherValues(group, std::span<const double>()).size(), 3u);
  });
}

TEST(Agreement, EqualValuesPassAndOthersAreListedWithTheirRanks) {
  EXPECT_THAT(Messages(3, [](ProcessGroup& g) { CheckEqual(g, "batches per epoch", 7); }),
              Each(StrEq("no error")));
  EXPECT_THAT(
      Messages(
          3, [](ProcessGroup& g) { CheckEqual(g, "batches per epoch", g.rank() == 1 ? 99 : 100); }),
      Each(AllOf(HasSubstr("batches per epoch is 100 on ranks 0 and 2, 99 on rank 1"))));
}

// Promise 5: the parameter is named, on every rank.
TEST(Agreement, ModelsThatDifferAreRefused) {
  const auto with = [](auto change) {
    return Messages(3, [&](ProcessGroup& g) {
      ToyModel model(1, g.rank() == 2 ? 17 : 16);
      change(g, model);
      CheckSameShape(g, model);
    });
  };
  EXPECT_THAT(with([](ProcessGroup&, ToyModel&) {}),
              Each(HasSubstr("parameter 'in.weight' f32[16, 6] on ranks 0 and 1, parameter "
                             "'in.weight' f32[17, 6] on rank 2")));
  const auto same_shape = [](auto change) {
    return Messages(3, [&](ProcessGroup& g) {
      ToyModel model;
      change(g, model);
      CheckSameShape(g, model);
    });
  };
  EXPECT_THAT(same_shape([](ProcessGroup&, ToyModel&) {}), Each(StrEq("no error")));
  EXPECT_THAT(same_shape([](ProcessGroup& g, ToyModel& m) {
                if (g.rank() == 0) m.Parameters()[3]->SetTrainable(false);
              }),
              Each(AllOf(HasSubstr("parameter 'shared.bias' f32[16] on ranks 1 and 2"),
                         HasSubstr("parameter 'shared.bias' f32[16] (not trained) on rank 0"))));
  EXPECT_THAT(same_shape([](ProcessGroup& g, ToyModel& m) {
                if (g.rank() == 1) {
                  const auto p = m.Parameters()[2];
                  p->SetValue(p->value().Detach().To(DType::kBF16));
                }
              }),
              Each(AllOf(HasSubstr("parameter 'shared.weight' bf16[16, 16] on rank 1"))));
}

TEST(Agreement, AModelThatHasMoreIsRefused) {
  class Larger : public ToyModel {
   public:
    explicit Larger(bool more) {
      if (more) AddBuffer("count", Tensor::Zeros({2}, DType::kI64));
    }
  };
  EXPECT_THAT(Messages(2,
                       [](ProcessGroup& g) {
                         Larger model(g.rank() == 1);
                         CheckSameShape(g, model);
                       }),
              Each(AllOf(HasSubstr("nothing more on rank 0"), HasSubstr("buffer 'count'"))));
}

TEST(Agreement, BroadcastsAnyTensor) {
  RunInProcess(3, [](ProcessGroup& group) {
    const auto rank = static_cast<double>(group.rank());
    const std::vector<Tensor> tensors = {
        Tensor::Full({5}, rank, DType::kF32), Tensor::Full({}, rank, DType::kI64),
        Tensor::Full({2, 3}, rank, DType::kBF16),
        Tensor::Full({4, 3}, rank, DType::kF64).Transpose(0, 1), Tensor::Zeros({0}, DType::kF32)};
    const uint64_t version = tensors[0].storage().version();
    BroadcastTensors(group, tensors, 2);
    for (const Tensor& t : tensors) {
      for (const double v : t.To(DType::kF64).ToVector<double>()) EXPECT_EQ(v, 2);
    }
    EXPECT_GT(tensors[0].storage().version(), version) << "a saved tensor must notice";
  });
}

// Promise 9: a single flipped bit is found, and its rank named.
TEST(Agreement, AFlippedBitIsFound) {
  for (const int bit : {0, 12, 31}) {
    const auto messages = Messages(3, [&](ProcessGroup& g) {
      ToyModel model;
      if (g.rank() == 1) {
        const Tensor weight = model.Parameters()[4]->value().Detach();
        static_cast<uint32_t*>(weight.raw_data())[weight.numel() - 1] ^= 1u << bit;
      }
      std::vector<std::pair<std::string, Tensor>> state;
      for (const auto& [name, p] : model.NamedParameters()) state.emplace_back(name, p->value());
      CheckSameBits(g, "the weights after step 100", state);
    });
    EXPECT_THAT(messages,
                Each(HasSubstr("the weights after step 100 are not the same on all "
                               "ranks: 'extra.weight' of rank 1 differs from that of ranks 0 "
                               "and 2")));
  }
}

TEST(Agreement, OfTwoRanksItIsUnknownWhichIsRight) {
  const auto messages = Messages(2, [](ProcessGroup& g) {
    const std::vector<std::pair<std::string, Tensor>> state = {
        {"a", Tensor::Full({3}, 1, DType::kF32)},
        {"b", Tensor::Full({3}, g.rank(), DType::kF32)},
        {"c", Tensor::Full({3}, g.rank(), DType::kF32)}};
    CheckSameBits(g, "the weights", state);
  });
  EXPECT_THAT(messages,
              Each(AllOf(HasSubstr("'b' of rank 1"), HasSubstr("which is right is unknown"),
                         HasSubstr("so do 1 more"))));
}

TEST(Agreement, MissingGradientsAreComparedToo) {
  const auto check = [](auto backward) {
    return Messages(2, [&](ProcessGroup& g) {
      ToyModel model;
      backward(g, model);
      CheckGradients(g, model);
    });
  };
  EXPECT_THAT(check([](ProcessGroup&, ToyModel&) {}), Each(StrEq("no error")));
  EXPECT_THAT(check([](ProcessGroup&, ToyModel& m) { ToyBackward(m, MakeToyBatch(0), 1); }),
              Each(StrEq("no error")));
  EXPECT_THAT(
      check([](ProcessGroup& g, ToyModel& m) { ToyBackward(m, MakeToyBatch(g.rank()), 1); }),
      Each(HasSubstr("the gradients are not the same on all ranks: 'in.weight'")));
  EXPECT_THAT(check([](ProcessGroup& g, ToyModel& m) {
                m.use_extra = g.rank() == 0;
                ToyBackward(m, MakeToyBatch(0), 1);
                for (const auto& p : m.Parameters()) {
                  if (!p->name().starts_with("extra")) p->leaf().ZeroGrad();
                }
              }),
              Each(HasSubstr("'extra.weight'")));
}

TEST(Agreement, ListsRanks) {
  const std::array<int, 3> ranks = {0, 2, 3};
  EXPECT_EQ(ListRanks(std::span(ranks).subspan(0, 1)), "rank 0");
  EXPECT_EQ(ListRanks(std::span(ranks).subspan(0, 2)), "ranks 0 and 2");
  EXPECT_EQ(ListRanks(ranks), "ranks 0, 2 and 3");
}

}  // namespace
}  // namespace lockstep::dist
