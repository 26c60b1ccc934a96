// Data parallelism over NCCL on GPUs, real or simulated, ranks as threads of the test.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>

#include "dist/data_parallel/reducer.h"
#include "dist/groups/agreement.h"
#include "tests/dist/gpu_ranks.h"
#include "tests/dist/toy_steps.h"
#include "tests/message_of.h"

namespace lockstep::dist {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

class ReducerCuda : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { SKIP_WITHOUT_GPUS(GetParam()); }
};

std::vector<float> StepGradients(int ranks, int64_t leaves, const ReducerOptions& options) {
  const auto run = [](int n, const auto& body) { RunOnGpus(n, body); };
  return dist::StepGradients(run, ranks, leaves, options);
}

void ExpectNear(const std::vector<float>& got, const std::vector<float>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-6) << i;
}

TEST_P(ReducerCuda, GradientsAreThoseOfTheWholeBatch) {
  ExpectNear(StepGradients(GetParam(), 8, Small()), WholeBatchGradients(8));
}

TEST_P(ReducerCuda, OrderedSumsHaveTheBitsOfOneGpu) {
  const std::vector<float> one = StepGradients(1, 8, Small({.sum = GradientSum::kOrdered}));
  ExpectNear(one, WholeBatchGradients(8));
  EXPECT_EQ(StepGradients(GetParam(), 8, Small({.sum = GradientSum::kOrdered})), one);
  EXPECT_EQ(StepGradients(GetParam(), 8, {.sum = GradientSum::kOrdered}), one) << "one bucket";
}

TEST_P(ReducerCuda, UnusedParametersAndBadGradientsAreNamed) {
  const int ranks = GetParam();
  std::vector<std::string> unused(ranks), bad(ranks);
  RunOnGpus(ranks, [&](ProcessGroup& group) {
    ToyModel model(1, 16, group.device());
    Reducer reducer(&group, model.Parameters(), Small());
    model.use_extra = group.rank() != 1;
    unused[group.rank()] =
        test::MessageOf<ReplicaError>([&] { ToyBackward(model, MakeToyBatch(group.rank()), 1); });
    model.use_extra = true;
    model.ZeroGrad();
    ToyBatch batch = MakeToyBatch(group.rank());
    if (group.rank() == 1) batch.x.data<float>()[3] = INFINITY;
    ToyBackward(model, batch, 1);
    bad[group.rank()] = reducer.LocateNonFinite();
  });
  EXPECT_THAT(unused, Each(HasSubstr("'extra.weight' on rank 1")));
  EXPECT_THAT(bad, Each(testing::StartsWith("rank 1 ('")));
}

INSTANTIATE_TEST_SUITE_P(Gpus, ReducerCuda, testing::Values(2, 4, 8));

}  // namespace
}  // namespace lockstep::dist
