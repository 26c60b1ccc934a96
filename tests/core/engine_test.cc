#include "core/autograd/engine.h"

#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <future>
#include <map>
#include <thread>

#include "tests/core/test_ops.h"
#include "tests/message_of.h"
#include "tests/sanitized.h"

namespace lockstep {
namespace {

using test::Add;
using test::LeafOf;
using test::MessageOf;
using test::Mul;
using test::Scale;
using test::Split;
using test::Sum;
using test::Values;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Leaf& LeafIn(const Tensor& x) { return *x.autograd()->leaf; }

Tensor Named(const std::string& name, const std::vector<double>& values = {1, 2}) {
  Tensor x = LeafOf(values);
  LeafIn(x).set_name(name);
  return x;
}

// Records what it sees.
class Recorder : public BackwardObserver {
 public:
  explicit Recorder(std::vector<std::string>* log = nullptr) : log_(log ? log : &events) {}
  void OnBegin(const BackwardPlan& plan) override {
    planned.clear();
    for (const auto& leaf : plan.leaves) planned.push_back(leaf->name());
    log_->push_back("begin");
  }
  void OnLeafReady(Leaf& leaf) override {
    ready.push_back(leaf.name());
    gradients[leaf.name()] = Values(leaf.grad());
    log_->push_back(leaf.name());
  }
  void OnEnd() override { log_->push_back("end"); }
  void OnError() noexcept override { log_->push_back("error"); }
  bool awaits_leaves() const override { return awaits; }

  bool awaits = true;
  std::vector<std::string> events, planned, ready;
  std::map<std::string, std::vector<double>> gradients;  // as they were when ready

 private:
  std::vector<std::string>* log_;
};

// A node that fails in backward.
struct FailingNode : Node {
  FailingNode() : Node("failing") {}
  void Backward(Gradients&) override { throw Error("backward failed"); }
};
Tensor Failing(const Tensor& x) {
  Tensor y = x.Detach();
  Record(std::make_shared<FailingNode>(), {&x}, {&y});
  return y;
}

// ---- Gradients ----

TEST(EngineTest, Diamond) {
  const Tensor x = LeafOf({3, 5});
  const Tensor left = Scale(x, 2), right = Mul(x, x);
  Backward(Sum(Mul(left, right)));  // 2 x^3
  EXPECT_THAT(Values(x.grad()), ElementsAre(54, 150));
}

TEST(EngineTest, SeveralRootsWithTheirGradients) {
  const Tensor x = LeafOf({3, 5});
  const std::vector<Tensor> roots = {Scale(x, 2), Mul(x, x), x};
  const std::vector<Tensor> grads = {Tensor::FromVector<double>({1, 10}, {2}),
                                     Tensor::FromVector<double>({100, 1000}, {2}),
                                     Tensor::FromVector<double>({0.5, 0.25}, {2})};
  Backward(roots, grads);
  EXPECT_THAT(Values(x.grad()), ElementsAre(2 + 600 + 0.5, 20 + 10000 + 0.25));
}

TEST(EngineTest, TheSameRootTwiceCountsTwice) {
  const Tensor x = LeafOf({3});
  const Tensor y = Mul(x, x);
  const std::vector<Tensor> roots = {y, y};
  Backward(roots, {});
  EXPECT_THAT(Values(x.grad()), ElementsAre(12));
}

TEST(EngineTest, ARootInsideAnothersGraph) {
  const Tensor x = LeafOf({3});
  const Tensor y = Mul(x, x), z = Mul(y, x);
  const std::vector<Tensor> roots = {y, z};
  Backward(roots, {});
  EXPECT_THAT(Values(x.grad()), ElementsAre(6 + 27));
}

TEST(EngineTest, UnusedOutputsOfANodeHaveZeroGradient) {
  const Tensor x = LeafOf({1, 2, 3, 4});
  Backward(Sum(Scale(Split(x).second, 7)));
  EXPECT_THAT(Values(x.grad()), ElementsAre(0, 0, 7, 7));
  const auto [a, b] = Split(x);
  x.ZeroGrad();
  Backward(Sum(Mul(a, b)));
  EXPECT_THAT(Values(x.grad()), ElementsAre(3, 4, 1, 2));
}

TEST(EngineTest, RootGradientsMustFit) {
  const Tensor x = LeafOf({3, 5});
  const Tensor y = Scale(x, 2);
  EXPECT_THAT(MessageOf<Error>([&] { Backward(y); }),
              HasSubstr("f64[2] on cpu needs a root gradient"));
  EXPECT_THAT(MessageOf<Error>([&] { Backward(y, Tensor::Zeros({3}, DType::kF64)); }),
              HasSubstr("root gradient f64[3] on cpu does not match its root, f64[2] on cpu"));
  EXPECT_THROW(Backward(y, Tensor::Zeros({2}, DType::kF32)), ArgumentError);
  EXPECT_THAT(MessageOf<Error>([&] { Backward(Tensor()); }), HasSubstr("undefined"));
  const std::vector<Tensor> roots = {y, y}, one = {Tensor::Zeros({2}, DType::kF64)};
  EXPECT_THAT(MessageOf<Error>([&] { Backward(roots, one); }),
              HasSubstr("2 roots got 1 root gradients"));
}

TEST(EngineTest, SeveralGraphsLiveAtOnce) {
  const Tensor x = LeafOf({3});
  const Tensor first = Sum(Mul(x, x)), second = Sum(Scale(x, 5));
  const Tensor shared = Mul(x, x);
  const Tensor third = Sum(Scale(shared, 2)), fourth = Sum(Mul(shared, x));
  Backward(second);
  EXPECT_THAT(Values(x.grad()), ElementsAre(5));
  Backward(first);
  EXPECT_THAT(Values(x.grad()), ElementsAre(11));
  Backward(fourth, {}, {.retain_graph = true});
  EXPECT_THAT(Values(x.grad()), ElementsAre(38));
  Backward(third);
  EXPECT_THAT(Values(x.grad()), ElementsAre(50));
}

TEST(EngineTest, ThreadsRunTheirOwnGraphs) {
  std::vector<std::vector<double>> grads(4);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t, &grads] {
      const Tensor x = LeafOf({static_cast<double>(t), 1});
      for (int i = 0; i < 50; ++i) Backward(Sum(Mul(Mul(x, x), Scale(x, 2))));
      grads[t] = Values(x.grad());
    });
  }
  for (auto& thread : threads) thread.join();
  for (int t = 0; t < 4; ++t) EXPECT_THAT(grads[t], ElementsAre(300.0 * t * t, 300.0));
}

// Waits in its backward until the test lets it go on.
struct WaitingNode : Node {
  WaitingNode(std::promise<void>* begun, std::future<void>* go)
      : Node("waiting"), begun_(begun), go_(go) {}
  void Backward(Gradients& grads) override {
    begun_->set_value();
    go_->wait();
    grads.Put(0, grads[0]);
  }
  std::promise<void>* begun_;
  std::future<void>* go_;
};

TEST(EngineTest, TwoThreadsInBackwardOfOneModelAreRefused) {
  const Tensor x = LeafOf({3}), other = LeafOf({5});
  x.autograd()->leaf->set_name("h.0.weight");
  std::promise<void> begun, go;
  std::future<void> opened = go.get_future();
  std::thread first([&] {
    const Tensor y = Scale(x, 2);
    Tensor z = y.Detach();
    Record(std::make_shared<WaitingNode>(&begun, &opened), {&y}, {&z});
    Backward(z);
  });
  begun.get_future().wait();
  EXPECT_THAT(
      MessageOf([&] { Backward(Add(Scale(x, 7), other)); }),
      HasSubstr("another thread is in a Backward of 'h.0.weight', and one of the two would lose "
                "gradients: run one after the other, or give each thread its own model"));
  Backward(Scale(other, 7));  // a backward of other leaves is allowed
  EXPECT_THAT(Values(other.grad()), ElementsAre(7));
  go.set_value();
  first.join();
  EXPECT_THAT(Values(x.grad()), ElementsAre(2));
  Backward(Scale(x, 7));
  EXPECT_THAT(Values(x.grad()), ElementsAre(9));
}

TEST(EngineTest, ABackwardThatFailsLetsTheNextOneRun) {
  const Tensor x = LeafOf({3});
  EXPECT_THROW(Backward(Failing(Scale(x, 2))), Error);
  std::thread([&] { Backward(Scale(x, 7)); }).join();
  EXPECT_THAT(Values(x.grad()), ElementsAre(7));
}

// ---- Retaining ----

TEST(EngineTest, ASecondBackwardIsAnErrorThatSaysHow) {
  const Tensor x = LeafOf({3});
  const Tensor y = Sum(Mul(x, x));
  Backward(y);
  const std::string message = MessageOf<Error>([&] { Backward(y); });
  EXPECT_THAT(message, HasSubstr("second backward through 'test_sum'"));
  EXPECT_THAT(message, HasSubstr("retain_graph"));
  EXPECT_THAT(Values(x.grad()), ElementsAre(6)) << "refused before anything was added";
}

TEST(EngineTest, RetainedGraphsRunAgain) {
  const Tensor x = LeafOf({3});
  const Tensor y = Sum(Mul(x, x));
  Backward(y, {}, {.retain_graph = true});
  Backward(y, {}, {.retain_graph = true});
  Backward(y);
  EXPECT_THAT(Values(x.grad()), ElementsAre(18));
  EXPECT_THROW(Backward(y), Error);
}

// ---- Who receives a gradient ----

// Scales by one, and records who receives its gradient.
struct AskingNode : Node {
  explicit AskingNode(Node** receiver) : Node("asking"), receiver(receiver) {}
  void Backward(Gradients& grads) override {
    *receiver = grads.receiver(0);
    grads.Put(0, grads[0]);
  }
  Node** receiver;
};
Tensor Asking(const Tensor& x, Node** receiver) {
  Tensor y = x.Detach();
  Record(std::make_shared<AskingNode>(receiver), {&x}, {&y});
  return y;
}

TEST(ReceiverTest, IsTheOnlyNodeThatGetsTheGradientAndNothingElse) {
  const Tensor x = LeafOf({3});
  Node* receiver = nullptr;
  const auto receives = [&](const Tensor& of, const std::vector<Tensor>& roots,
                            bool retain = false) {
    receiver = nullptr;
    Backward(roots, {}, {.retain_graph = retain});
    return receiver != nullptr && receiver == of.autograd()->node.get();
  };
  Tensor h = Scale(x, 2);
  EXPECT_TRUE(receives(h, {Sum(Asking(h, &receiver))}));
  h = Scale(x, 2);
  EXPECT_FALSE(receives(h, {Sum(Asking(h, &receiver))}, true)) << "a graph that is kept";
  h = Scale(x, 2);
  EXPECT_FALSE(receives(h, {Sum(Add(Asking(h, &receiver), h))})) << "another reader";
  h = Scale(x, 2);
  EXPECT_FALSE(receives(h, {Sum(Asking(h, &receiver)), h})) << "it is a root as well";
  EXPECT_FALSE(receives(x, {Sum(Asking(x, &receiver))})) << "a leaf";
  // A reader outside of this backward does not count: its own backward would fail.
  h = Scale(x, 2);
  const Tensor other = Sum(Scale(h, 3));
  EXPECT_TRUE(receives(h, {Sum(Asking(h, &receiver))}));
  EXPECT_THROW(Backward(other), Error);
}

// ---- Observers ----

TEST(ObserverTest, ASharedLeafIsReadyOnceAfterItsLastAddition) {
  const Tensor tied = Named("tied"), other = Named("other");
  Recorder recorder;
  LeafIn(tied).AddObserver(&recorder);
  LeafIn(other).AddObserver(&recorder);
  const Tensor embedded = Scale(tied, 3);  // as wte at the bottom
  const Tensor hidden = Mul(embedded, other);
  Backward(Sum(Mul(hidden, tied)));  // and the output head at the top
  EXPECT_THAT(recorder.events, ElementsAre("begin", "other", "tied", "end"));
  EXPECT_EQ(recorder.gradients["tied"], Values(tied.grad()));
  EXPECT_THAT(Values(tied.grad()), ElementsAre(6, 24));
}

TEST(ObserverTest, KnowsTheOrderOfTheLeavesBeforehand) {
  const Tensor a = Named("a"), b = Named("b"), c = Named("c"), d = Named("d"), e = Named("e");
  Recorder recorder;
  const Tensor low = Mul(a, b);
  const Tensor middle = Mul(c, low);
  const std::vector<Tensor> roots = {Sum(Mul(Mul(middle, d), a)), e};
  const std::vector<Tensor> grads = {Tensor(), Tensor::Zeros({2}, DType::kF64)};
  Backward(roots, grads, {.observers = {&recorder}});
  EXPECT_THAT(recorder.planned, ElementsAre("e", "d", "c", "a", "b"));
  EXPECT_EQ(recorder.ready, recorder.planned);
  for (const auto& [name, gradient] : recorder.gradients) {
    EXPECT_THAT(gradient, testing::SizeIs(2)) << name << " had no gradient when it was ready";
  }
}

TEST(ObserverTest, KnowsTheOrderOfTheNodesBeforehand) {
  struct : BackwardObserver {
    bool awaits_leaves() const override { return false; }
    void OnBegin(const BackwardPlan& plan) override {
      for (const auto& node : plan.nodes) names.emplace_back(node->name());
      for (const auto& leaf : plan.leaves) names.push_back(leaf->name());
    }
    std::vector<std::string> names;
  } planned;
  const Tensor a = Named("a"), b = Named("b");
  Backward(Sum(Mul(Scale(a, 2), b)), {}, {.observers = {&planned}});
  EXPECT_THAT(planned.names, ElementsAre("test_sum", "test_mul", "test_scale", "b", "a"));
}

// y = the sum of the inputs; records which of their gradients it is asked for.
struct SplittingNode : Node {
  SplittingNode(bool splits, std::vector<std::string>* asked)
      : Node("splitting"), splits(splits), log(asked) {}
  void Backward(Gradients& grads) override {
    std::string asked;
    for (size_t i = 0; i < grads.inputs(); ++i) {
      asked += grads.needs(i) ? '1' : '0';
      if (grads.needs(i)) grads.Put(i, grads[0]);
    }
    log->push_back(asked);
    EXPECT_FALSE(released);
  }
  bool SplitsByInput() const override { return splits; }
  void Release() override { released = true; }

  bool splits, released = false;
  std::vector<std::string>* log;
};
Tensor SumOf(const std::vector<const Tensor*>& inputs, bool splits, std::vector<std::string>& log) {
  Tensor y = LeafOf({0, 0}).Detach();
  for (const Tensor* x : inputs) y = Add(y, x->Detach());
  Tensor* outputs[] = {&y};
  Record(std::make_shared<SplittingNode>(splits, &log), inputs, outputs);
  return y;
}

TEST(ObserverTest, HearsOfLeavesBeforeTheOtherGradientsOfANodeThatSplits) {
  using Log = std::vector<std::string>;
  const Tensor a = Named("a"), b = Named("b"), c = Named("c");
  const auto run = [&](bool splits, bool observed, bool retain = false, bool awaits = true) {
    for (const Tensor* x : {&a, &b, &c}) x->ZeroGrad();
    Log log;
    Recorder recorder(&log);
    recorder.awaits = awaits;
    const Tensor hidden = Scale(a, 3);
    const Tensor loss = Sum(SumOf({&b, &hidden, &c}, splits, log));
    BackwardOptions options{.retain_graph = retain};
    if (observed) options.observers = {&recorder};
    Backward(loss, {}, options);
    EXPECT_THAT(Values(a.grad()), ElementsAre(3, 3));
    EXPECT_THAT(Values(b.grad()), ElementsAre(1, 1));
    EXPECT_THAT(Values(c.grad()), ElementsAre(1, 1));
    return log;
  };
  const Log split = {"begin", "101", "b", "c", "010", "a", "end"};
  EXPECT_EQ(run(true, true), split);
  EXPECT_EQ(run(true, true, /*retain=*/true), split);
  EXPECT_EQ(run(false, true), Log({"begin", "111", "b", "c", "a", "end"}));
  EXPECT_EQ(run(true, false), Log({"111"}));
  // One that only records changes nothing.
  EXPECT_EQ(run(true, true, false, /*awaits=*/false), Log({"begin", "111", "b", "c", "a", "end"}));
}

// A leaf that gets more later is not worth a separate call, nor are nodes whose inputs are all
// leaves.
TEST(ObserverTest, ANodeSplitsOnlyWhereSomebodyHearsOfItSooner) {
  const Tensor a = Named("a"), b = Named("b");
  std::vector<std::string> log;
  Recorder recorder(&log);
  const Tensor hidden = Mul(a, b);
  Backward(Sum(SumOf({&a, &hidden}, true, log)), {}, {.observers = {&recorder}});
  Backward(Sum(SumOf({&a, &b}, true, log)), {}, {.observers = {&recorder}});
  EXPECT_THAT(log, ElementsAre("begin", "11", "a", "b", "end", "begin", "11", "a", "b", "end"));
}

TEST(ObserverTest, IsToldOnceHoweverOftenItWasAdded) {
  const Tensor a = Named("a"), b = Named("b");
  Recorder recorder;
  LeafIn(a).AddObserver(&recorder);
  LeafIn(b).AddObserver(&recorder);
  Backward(Sum(Mul(a, b)), {}, {.observers = {&recorder}});
  EXPECT_THAT(recorder.events, ElementsAre("begin", "a", "b", "end"));
}

TEST(ObserverTest, SeesOnlyBackwardsOfItsLeavesAndNoneAfterRemoval) {
  const Tensor a = Named("a"), b = Named("b");
  Recorder recorder;
  LeafIn(a).AddObserver(&recorder);
  Backward(Sum(Scale(b, 2)));
  EXPECT_THAT(recorder.events, IsEmpty());
  Backward(Sum(Scale(a, 2)));
  EXPECT_THAT(recorder.events, ElementsAre("begin", "a", "end"));
  LeafIn(a).RemoveObserver(&recorder);
  Backward(Sum(Scale(a, 2)));
  EXPECT_EQ(recorder.events.size(), 3u);
}

TEST(ObserverTest, HearsOfErrorsInsteadOfTheEnd) {
  const Tensor a = Named("a"), b = Named("b");
  Recorder recorder;
  LeafIn(a).AddObserver(&recorder);
  EXPECT_EQ(MessageOf<Error>([&] { Backward(Sum(Mul(Failing(a), b))); }), "backward failed");
  EXPECT_THAT(recorder.events, ElementsAre("begin", "error"));
  // The engine still works afterwards.
  a.ZeroGrad();
  Backward(Sum(Mul(a, a)));
  EXPECT_THAT(Values(a.grad()), ElementsAre(2, 4));
}

TEST(ObserverTest, AnErrorOfAnObserverReachesTheCallerAndTheOthers) {
  struct Thrower : BackwardObserver {
    std::string where;
    void OnBegin(const BackwardPlan&) override {
      if (where == "begin") throw Error("at begin");
    }
    void OnLeafReady(Leaf&) override {
      if (where == "ready") throw Error("at ready");
    }
    void OnEnd() override {
      if (where == "end") throw Error("at end");
    }
  };
  for (const char* where : {"begin", "ready", "end"}) {
    const Tensor a = Named("a");
    Thrower thrower;
    thrower.where = where;
    Recorder recorder;
    EXPECT_EQ(MessageOf<Error>([&] {
                Backward(Sum(Scale(a, 2)), {}, {.observers = {&thrower, &recorder}});
              }),
              StrCat("at ", where));
    ASSERT_FALSE(recorder.events.empty());
    EXPECT_EQ(recorder.events.back(), "error");
    EXPECT_THAT(recorder.events, testing::Not(testing::Contains("end")));
  }
}

TEST(ObserverTest, RecordingIsOffDuringBackwardAndBackAfter) {
  struct Checker : BackwardObserver {
    bool enabled = true;
    void OnLeafReady(Leaf&) override { enabled = GradEnabled(); }
  } checker;
  const Tensor a = Named("a");
  Backward(Sum(Scale(a, 2)), {}, {.observers = {&checker}});
  EXPECT_FALSE(checker.enabled);
  EXPECT_TRUE(GradEnabled());
}

// ---- Deferral ----

struct TiedModel {
  Tensor a = Named("a", {0.1, 0.7}), b = Named("b", {0.3, -0.9}), c = Named("c", {1.7, 0.2});
  Tensor Loss() const {
    const Tensor x = Tensor::FromVector<double>({0.4, -0.6}, {2});
    Tensor h = Mul(x, a);
    h = Mul(Add(h, b), c);
    return Sum(Mul(Mul(h, b), Mul(a, h)));
  }
  std::vector<std::vector<double>> Grads() const {
    return {Values(a.grad()), Values(b.grad()), Values(c.grad())};
  }
};

TEST(DeferTest, TheSameBitsLaterAndReadyLater) {
  TiedModel now;
  Backward(now.Loss());
  TiedModel late;
  Recorder recorder;
  LeafIn(late.a).AddObserver(&recorder);
  DeferredGradients deferred;
  EXPECT_TRUE(deferred.empty());
  Backward(
      late.Loss(), {},
      {.observers = {&recorder}, .defer = [](const Leaf&) { return true; }, .deferred = &deferred});
  EXPECT_FALSE(deferred.empty());
  EXPECT_THAT(recorder.events, ElementsAre("begin"));
  for (const auto& grad : late.Grads()) EXPECT_THAT(grad, IsEmpty());
  deferred.Run();
  EXPECT_TRUE(deferred.empty());
  EXPECT_EQ(late.Grads(), now.Grads());
  EXPECT_EQ(recorder.ready, recorder.planned);
  EXPECT_EQ(recorder.events.back(), "end");
  EXPECT_EQ(recorder.gradients["b"], Values(late.b.grad()));
}

TEST(DeferTest, SomeLeavesNowSomeLater) {
  TiedModel now;
  Backward(now.Loss());
  for (const std::string which : {"a", "b", "c"}) {
    TiedModel late;
    Recorder recorder;
    DeferredGradients deferred;
    Backward(late.Loss(), {},
             {.observers = {&recorder},
              .defer = [&](const Leaf& leaf) { return leaf.name() == which; },
              .deferred = &deferred});
    EXPECT_THAT(recorder.ready, testing::SizeIs(2));
    EXPECT_THAT(recorder.events, testing::Not(testing::Contains("end")));
    deferred.Run();
    EXPECT_EQ(recorder.ready.back(), which);
    EXPECT_EQ(recorder.events.back(), "end");
    EXPECT_EQ(late.Grads(), now.Grads()) << which;
  }
}

TEST(DeferTest, NoGradientIsComputedTwice) {
  TiedModel model;
  test::counters = {};
  Backward(model.Loss());
  const auto [first, second] = test::counters;
  test::counters = {};
  DeferredGradients deferred;
  Backward(model.Loss(), {},
           {.defer = [](const Leaf& leaf) { return leaf.name() != "c"; }, .deferred = &deferred});
  deferred.Run();
  EXPECT_EQ(test::counters.first, first);
  EXPECT_EQ(test::counters.second, second);
}

TEST(DeferTest, SeveralBackwardsBeforeTheRun) {
  TiedModel now;
  for (int i = 0; i < 3; ++i) Backward(now.Loss());
  TiedModel late;
  Recorder recorder;
  DeferredGradients deferred;
  for (int i = 0; i < 3; ++i) {
    Backward(late.Loss(), {},
             {.observers = {&recorder},
              .defer = [](const Leaf&) { return true; },
              .deferred = &deferred});
  }
  deferred.Run();
  EXPECT_EQ(late.Grads(), now.Grads());
  EXPECT_EQ(std::count(recorder.events.begin(), recorder.events.end(), "end"), 3);
  EXPECT_EQ(std::count(recorder.events.begin(), recorder.events.end(), "a"), 3);
}

TEST(DeferTest, KeepsWhatItNeedsUntilItRan) {
  const Tensor x = Named("x"), w = Tensor::FromVector<double>({3, 4}, {2});
  DeferredGradients deferred;
  Backward(Sum(Mul(x, w)), {}, {.defer = [](const Leaf&) { return true; }, .deferred = &deferred});
  EXPECT_FALSE(w.storage().unique());
  deferred.Run();
  EXPECT_TRUE(w.storage().unique());
  EXPECT_THAT(Values(x.grad()), ElementsAre(3, 4));
}

TEST(DeferTest, AnErrorInTheRunIsToldToTheObservers) {
  const Tensor a = Named("a");
  Recorder recorder;
  LeafIn(a).AddObserver(&recorder);
  DeferredGradients deferred;
  Backward(Sum(Failing(a)), {}, {.defer = [](const Leaf&) { return true; }, .deferred = &deferred});
  EXPECT_EQ(MessageOf<Error>([&] { deferred.Run(); }), "backward failed");
  EXPECT_THAT(recorder.events, ElementsAre("begin", "error"));
  EXPECT_TRUE(deferred.empty());
}

TEST(DeferTest, NeedsBothOptions) {
  const Tensor a = Named("a");
  DeferredGradients deferred;
  EXPECT_THROW(Backward(Sum(a), {}, {.deferred = &deferred}), ArgumentError);
  EXPECT_THROW(Backward(Sum(a), {}, {.defer = [](const Leaf&) { return true; }}), ArgumentError);
}

// ---- Size ----

// Hands the gradient on.
struct PassNode : Node {
  PassNode() : Node("pass") {}
  void Backward(Gradients& grads) override { grads.Put(0, grads[0]); }
};
Tensor Pass(const Tensor& x) {
  Tensor y = x.Detach();
  Record(std::make_shared<PassNode>(), {&x}, {&y});
  return y;
}

TEST(EngineTest, AMillionNodesDeepNeitherInBackwardNorInDestructionOverflowTheStack) {
  constexpr int kDepth = test::kSanitized ? 100000 : 1000000;
  const Tensor x = LeafOf({3});
  {
    Tensor y = x;
    for (int i = 0; i < kDepth; ++i) y = Pass(y);
    Backward(y);
    EXPECT_THAT(Values(x.grad()), ElementsAre(1));
  }
  Tensor y = x;
  for (int i = 0; i < kDepth; ++i) y = Pass(y);
  y = Tensor();  // without backward
}

TEST(EngineTest, DestructionOfADeepGraphKeepsWhatOthersHold) {
  const Tensor x = LeafOf({3});
  Tensor kept;
  Tensor y = x;
  for (int i = 0; i < 10000; ++i) {
    y = Add(y, Scale(y, 1));  // two paths to every node
    y = Scale(y, 0.5);
    if (i == 5000) kept = y;
  }
  y = Tensor();
  Backward(kept);
  EXPECT_THAT(Values(x.grad()), ElementsAre(1));
}

}  // namespace
}  // namespace lockstep
