// What log.ops writes of a step.
#include "models/train/step/op_trace.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "core/autograd/node.h"
#include "tests/models/temp_folder.h"

namespace lockstep::models {
namespace {

using testing::HasSubstr;

class Nothing : public Module {};

class OpTraceTest : public testing::Test {
 protected:
  // An all_reduce of the group "world".
  void Call(int64_t sequence, DType dtype = DType::kF32) {
    const dist::Collective call{
        .kind = dist::CollectiveKind::kAllReduce, .dtype = dtype, .count = 2, .sequence = sequence};
    trace_.OnCall("world", call, "a bucket", x_);
    trace_.OnResult("world", call, x_);
  }
  void Operation(const Node* node) {
    const Tensor* const in[] = {&x_};
    Tensor y = x_.Detach();
    Tensor* const out[] = {&y};
    trace_.OnForward(node, in, out);
  }
  std::vector<OpEvent> Events() {
    trace_.EndStep();
    return ReadOpEvents(folder_.Path(OpEventsFile(3, 0)));
  }

  const test::TempFolder folder_{"op_trace"};
  const Tensor x_ = Tensor::FromVector<float>({1, 2}, {2});
  Nothing model_;
  ForwardPlace place_{model_};
  OpTrace trace_{{.step = 3}, folder_.path(), 0, {}, place_};
};

// A group counts since it was made, and so otherwise in a run that went on from a checkpoint.
TEST_F(OpTraceTest, NumbersCollectivesInTheStep) {
  trace_.BeginStep(3);
  Call(41);
  Call(42, DType::kI64);  // a decision of the loop
  Call(43);
  const std::vector<OpEvent> events = Events();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].key, "world#1");
  EXPECT_EQ(events[1].key, "world#2");
  EXPECT_THAT(events[1].name, HasSubstr("all_reduce #2 (f32[2], sum) of a bucket"));
  EXPECT_EQ(events[1].in.size(), 1u);
  EXPECT_EQ(events[1].out.size(), 1u);
}

TEST_F(OpTraceTest, BackwardIsWhereItEnds) {
  trace_.BeginStep(3);
  const auto node = MakeOpNode("block", {}, [](SavedTensors&, Gradients&) {});
  trace_.OnBackward(*node, {&x_, 1});
  const auto inner = MakeOpNode("inner", {}, [](SavedTensors&, Gradients&) {});
  Operation(inner.get());
  Call(1);
  trace_.OnGradients(*node, {&x_, 1});
  const std::vector<OpEvent> events = Events();
  ASSERT_EQ(events.size(), 3u);
  const OpEvent &backward = events[0], &operation = events[1], &call = events[2];
  EXPECT_EQ(backward.kind, "backward");
  EXPECT_EQ(backward.out.size(), 1u);
  EXPECT_LT(operation.at, backward.at);
  EXPECT_LT(operation.at, call.at);
  EXPECT_LE(call.at, backward.at);
}

// They may be parts of others, which would be blamed in their place.
TEST_F(OpTraceTest, HasNoOperationsWithoutBackward) {
  trace_.BeginStep(3);
  Operation(nullptr);
  EXPECT_TRUE(Events().empty());
}

TEST_F(OpTraceTest, IsOfOneStep) {
  trace_.BeginStep(2);
  trace_.EndStep();
  EXPECT_FALSE(trace_.done());
  trace_.BeginStep(3);
  trace_.EndStep();
  EXPECT_TRUE(trace_.done());
}

// Who observes goes on, and a second one is refused.
TEST_F(OpTraceTest, CollectivesHaveOneObserver) {
  OpTrace other{{.step = 3}, folder_.path(), 1, {}, place_};
  const dist::ObserveCalls observed(&trace_);
  EXPECT_THROW(dist::ObserveCalls{&other}, ArgumentError);
  EXPECT_EQ(dist::ObserveCalls::observer(), &trace_);
}

}  // namespace
}  // namespace lockstep::models
