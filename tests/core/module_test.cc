#include "core/module.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <optional>

#include "core/allocator.h"
#include "core/autograd/engine.h"
#include "tests/core/test_ops.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

using test::MessageOf;
using test::Mul;
using test::Sum;
using test::Values;
using testing::ElementsAre;
using testing::HasSubstr;

// Element i is i + the seed + the length of the name, whatever the range.
void CountingInit(std::span<float> out, int64_t first, uint64_t seed, const std::string& name) {
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<float>(first + static_cast<int64_t>(i + seed + name.size()));
  }
}

// y = weight * x.
class Gain : public Layer {
 public:
  explicit Gain(int64_t n = 2)
      : weight_(AddParameter("weight", {n}, CountingInit, /*decay=*/false)) {}
  const std::shared_ptr<Parameter>& weight() const { return weight_; }

 protected:
  Tensor Forward(const Tensor& x) override { return Mul(x, weight_->value()); }

 private:
  std::shared_ptr<Parameter> weight_;
};

// y = bias * second(first(x)).
class Pair : public Layer {
 public:
  Pair() {
    bias_ = AddParameter("bias", {2}, CountingInit, false);
    AddBuffer("running", Tensor::Zeros({2}, DType::kF64));
  }

 protected:
  Tensor Forward(const Tensor& x) override { return Mul(second_(first_(x)), bias_->value()); }

 private:
  std::shared_ptr<Parameter> bias_;
  Child<Layer> first_{this, "first", std::make_shared<Gain>()};
  Child<Layer> second_{this, "second", std::make_shared<Gain>()};
};

class Tree : public Layer {
 public:
  Tree() {
    layers_.Add(std::make_shared<Pair>());
    layers_.Add(std::make_shared<Gain>());
  }

 protected:
  Tensor Forward(const Tensor& x) override { return layers_[1](layers_[0](x)); }

 private:
  ChildList<Layer> layers_{this, "h"};
};

template <class List>
std::vector<std::string> Names(const List& list) {
  std::vector<std::string> names;
  for (const auto& [name, item] : list) names.push_back(name);
  return names;
}

Tensor Input() { return test::LeafOf({1, 2}); }

// ---- The tree ----

TEST(ModuleTest, NamesArePathsInTheOrderOfDeclaration) {
  Tree tree;
  EXPECT_THAT(Names(tree.NamedParameters()),
              ElementsAre("h.0.bias", "h.0.first.weight", "h.0.second.weight", "h.1.weight"));
  EXPECT_THAT(Names(tree.NamedModules()), ElementsAre("", "h.0", "h.0.first", "h.0.second", "h.1"));
  EXPECT_THAT(Names(tree.NamedBuffers()), ElementsAre("h.0.running"));
  EXPECT_EQ(tree.NumParameters(), 8);
}

TEST(ModuleTest, MaterializeNamesFillsAndPlaces) {
  Tree tree;
  for (const auto& p : tree.Parameters()) EXPECT_TRUE(p->value().device().is_meta());
  tree.Materialize(kCpu, 5, DType::kF64);
  for (const auto& [name, p] : tree.NamedParameters()) {
    EXPECT_EQ(p->name(), name);
    EXPECT_EQ(p->leaf().name(), name);
    EXPECT_EQ(p->value().dtype(), DType::kF64);
    EXPECT_THAT(Values(p->value()), ElementsAre(5 + name.size(), 6 + name.size()));
    EXPECT_TRUE(p->value().requires_grad());
  }
  for (const auto& [name, module] : tree.NamedModules()) EXPECT_EQ(module->path(), name);
  EXPECT_EQ(tree.NamedModules().front().second->path(), "");
}

// A module with buffers of several dtypes.
class Statistics : public Layer {
 public:
  Statistics()
      : mean_(AddBuffer("mean", Tensor::Full({2}, 3, DType::kF32))),
        count_(AddBuffer("count", Tensor::Zeros({}, DType::kI64))) {}
  void AddTwice() { AddBuffer("mean", Tensor::Zeros({1}, DType::kF32)); }

 protected:
  Tensor Forward(const Tensor& x) override {
    mean_.Fill(7);
    count_.Fill(1);
    return x;
  }

 private:
  Tensor &mean_, &count_;
};

TEST(ModuleTest, BuffersBeginAnewWhenMaterialised) {
  Statistics module;
  const auto buffer = [&](size_t i) { return module.NamedBuffers()[i].second; };
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
    module.Materialize(kCpu, 1, dtype);
    // Statistics keep their precision in a 16-bit model.
    EXPECT_EQ(buffer(0).dtype(), dtype == DType::kF64 ? DType::kF64 : DType::kF32);
    EXPECT_EQ(buffer(1).dtype(), DType::kI64);
    EXPECT_EQ(buffer(0).To(DType::kF64).ToVector<double>(), (std::vector<double>{3, 3}));
    EXPECT_EQ(buffer(1).Item(), 0);
    const Tensor before = buffer(0);
    module(Tensor::Zeros({1}, DType::kF32));
    EXPECT_EQ(buffer(0).To(DType::kF64).ToVector<double>(), (std::vector<double>{7, 7}));
    EXPECT_EQ(before.raw_data(), buffer(0).raw_data());  // NamedBuffers shares the memory
  }
  module.Materialize(kMeta, 1);
  EXPECT_TRUE(buffer(0).device().is_meta());
  module.Materialize(kCpu, 1);
  EXPECT_EQ(buffer(0).ToVector<float>(), (std::vector<float>{3, 3}));
  EXPECT_THROW(module.AddTwice(), ArgumentError);
}

TEST(ModuleTest, InitialisersSeeEveryElementOnceHoweverTheRangeIsCut) {
  Gain big(100003);
  big.Materialize(kCpu, 0);
  const std::vector<float> values = big.weight()->value().ToVector<float>();
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(values[i], static_cast<float>(i + strlen("weight")));
  }
}

TEST(ModuleTest, WithoutAnInitialiserParametersAreZero) {
  Parameter p({3}, {}, true);
  p.Materialize(kCpu, DType::kBF16, 1);
  EXPECT_THAT(Values(p.value()), ElementsAre(0, 0, 0));
}

TEST(ModuleTest, WithoutASeedParametersHaveMemoryAndNoValuesYet) {
  int calls = 0;
  const auto count = [&](std::span<float> values, int64_t, uint64_t seed, const std::string&) {
    ++calls;
    for (float& value : values) value = static_cast<float>(seed);
  };
  Parameter p({3}, count, true);
  p.Materialize(kCpu, DType::kBF16, /*seed=*/std::nullopt);
  EXPECT_EQ(calls, 0);
  EXPECT_EQ(p.value().dtype(), DType::kBF16);
  p.Initialize(7);
  EXPECT_EQ(calls, 1);
  EXPECT_THAT(Values(p.value()), ElementsAre(7, 7, 7));
}

TEST(ModuleTest, MetaKeepsShapesWithoutBytes) {
  Tree tree;
  const int64_t live = GetAllocator(kCpu).stats().live_bytes;
  tree.Materialize(kMeta, 1, DType::kBF16);
  for (const auto& p : tree.Parameters()) {
    EXPECT_EQ(p->value().shape(), Shape({2}));
    EXPECT_EQ(p->value().dtype(), DType::kBF16);
    EXPECT_EQ(p->value().raw_data(), nullptr);
  }
  EXPECT_LE(GetAllocator(kCpu).stats().live_bytes, live);
}

TEST(ModuleTest, ModulesWithoutNamesSaySo) {
  Gain gain;
  EXPECT_THAT(MessageOf<Error>([&] { gain.path(); }), HasSubstr("call Materialize"));
}

TEST(ModuleTest, TiedParametersAppearOnceUnderTheirFirstName) {
  struct Tied : Layer {
    Child<Gain> embed{this, "embed", std::make_shared<Gain>()};
    Tied() { ShareParameter("head", embed->weight()); }
    Tensor Forward(const Tensor& x) override { return Mul(embed(x), embed->weight()->value()); }
  };
  // The module's own parameters come before its children's.
  Tied tied;
  EXPECT_THAT(Names(tied.NamedParameters()), ElementsAre("head"));
  tied.Materialize(kCpu, 0, DType::kF64);
  EXPECT_EQ(tied.embed->weight()->name(), "head");
  const Tensor x = Input();
  Backward(Sum(tied(x)));  // sum w^2 x, w = [4, 5]
  EXPECT_THAT(Values(tied.embed->weight()->grad()), ElementsAre(8, 20));
}

TEST(ModuleTest, NamesMustBeDifferent) {
  struct Twice : Gain {
    Twice() { AddParameter("weight", {1}, {}, false); }
  };
  EXPECT_THAT(MessageOf<Error>([] { Twice(); }), HasSubstr("parameter named 'weight'"));
  struct Children : Gain {
    Child<Layer> a{this, "a", std::make_shared<Gain>()};
    Child<Layer> b{this, "a", std::make_shared<Gain>()};
  };
  EXPECT_THAT(MessageOf<Error>([] { Children(); }), HasSubstr("child named 'a'"));
  struct Null : Gain {
    Child<Layer> a{this, "a", nullptr};
  };
  EXPECT_THAT(MessageOf<Error>([] { Null(); }), HasSubstr("'a' must be a module"));
}

// ---- Replacement ----

// base(x) + low-rank update, here a second gain: what LoRA does.
class Adapted : public Layer {
 public:
  explicit Adapted(std::shared_ptr<Layer> base) : base_(this, "base", std::move(base)) {}

 protected:
  Tensor Forward(const Tensor& x) override { return test::Add(base_(x), update_(x)); }

 private:
  Child<Layer> base_;
  Child<Layer> update_{this, "update", std::make_shared<Gain>()};
};

// A layer of several arguments; one of them a reference.
class Sized : public Gain {
 public:
  Sized(int64_t n, std::string& told) : Gain(n) { told += StrCat(n, " "); }
};

TEST(ModuleTest, ChildrenAreMadeInPlaceFromTheArgumentsOfTheirConstructor) {
  struct Tree : Layer {
    Tensor Forward(const Tensor& x) override { return second(first(x)); }
    std::string told;
    Child<Gain> first{this, "first"};
    Child<Sized> second{this, "second", 2, told};
    Child<Gain> given{this, "given", std::make_shared<Sized>(5, told)};
    ChildList<Layer> list{this, "list"};
  } tree;
  EXPECT_EQ(tree.list.Add<Sized>(3, tree.told).weight()->logical_shape(), Shape({3}));
  tree.list.Add<Gain>();
  EXPECT_EQ(tree.told, "2 5 3 ");
  std::vector<std::string> names;
  for (const auto& [name, p] : tree.NamedParameters()) {
    names.push_back(StrCat(name, " ", p->logical_shape()));
  }
  EXPECT_THAT(names, ElementsAre("first.weight [2]", "second.weight [2]", "given.weight [5]",
                                 "list.0.weight [3]", "list.1.weight [2]"));
  EXPECT_EQ(tree.second->weight()->logical_shape(), Shape({2}));
}

// Whatever class a slot was declared with: wrappers and parallel layers are other ones.
TEST(ReplaceTest, TakesAnyModuleThatTakesAndReturnsTheSame) {
  struct Tree : Layer {
    Tensor Forward(const Tensor& x) override { return gain(x); }
    Child<Gain> gain{this, "gain"};
  } tree;
  const auto base = std::make_shared<Gain>();
  EXPECT_EQ(tree.gain->weight()->logical_shape(), Shape({2}));
  tree.ReplaceChild("gain", std::make_shared<Adapted>(base));
  tree.Materialize(kCpu, 0, DType::kF64);
  tree(Input());
  EXPECT_THAT(MessageOf<Error>([&] { tree.gain->weight(); }),
              HasSubstr("the child 'gain' has been replaced by a module of another class: it can "
                        "be called, but"));
  tree.ReplaceChild("gain", base);
  EXPECT_EQ(tree.gain->weight(), base->weight());
}

TEST(ReplaceTest, ByPathAnywhereInTheTree) {
  Tree tree;
  tree.Materialize(kCpu, 0, DType::kF64);
  const auto base = std::make_shared<Gain>();
  const auto adapted = std::make_shared<Adapted>(base);
  tree.ReplaceChild("h.0.second", adapted);
  EXPECT_THAT(Names(tree.NamedParameters()),
              ElementsAre("h.0.bias", "h.0.first.weight", "h.0.second.base.weight",
                          "h.0.second.update.weight", "h.1.weight"));
  EXPECT_EQ(adapted->path(), "h.0.second");
  EXPECT_EQ(base->weight()->name(), "h.0.second.base.weight");
  for (const auto& p : adapted->Parameters()) p->Materialize(kCpu, DType::kF64, 0);
  tree(Input());
}

TEST(ReplaceTest, MaterializeOfASubtreeKeepsItsPlace) {
  Tree tree;
  tree.Materialize(kCpu, 0);
  const auto gain = std::make_shared<Gain>();
  tree.ReplaceChild("h.1", gain);
  gain->Materialize(kCpu, 0);
  EXPECT_EQ(gain->weight()->name(), "h.1.weight");
}

TEST(ReplaceTest, ErrorsNameWhatThereIs) {
  Tree tree;
  EXPECT_THAT(MessageOf<Error>([&] { tree.ReplaceChild("h.0.third", std::make_shared<Gain>()); }),
              HasSubstr("no child module 'third'; there are: first second"));
  EXPECT_THAT(MessageOf<Error>([&] { tree.ReplaceChild("h.10", std::make_shared<Gain>()); }),
              HasSubstr("no child module 'h.10'"));
  struct Other : ModuleOf<Tensor(const Tensor&, int64_t)> {
    Tensor Forward(const Tensor& x, int64_t) override { return x; }
  };
  EXPECT_THAT(MessageOf<Error>([&] { tree.ReplaceChild("h.1", std::make_shared<Other>()); }),
              HasSubstr("'h.1' cannot be replaced by a module of another interface"));
  EXPECT_THROW(tree.ReplaceChild("h.1", nullptr), ArgumentError);
}

// A wrapper whose child has no name: paths and names stay.
class Wrapper : public Layer {
 public:
  explicit Wrapper(std::shared_ptr<Module> base) : base_(this, "", std::move(base)) {}
  Child<Layer>& base() { return base_; }

 protected:
  Tensor Forward(const Tensor& x) override { return base_(x); }

 private:
  Child<Layer> base_;
};

TEST(ReplaceTest, AChildWithoutANameStandsAtItsOwnersPath) {
  Tree tree;
  tree.Materialize(kCpu, 0, DType::kF64);
  const std::vector<std::string> names = Names(tree.NamedParameters());
  const auto pair = std::make_shared<Pair>();
  tree.ReplaceChild("h.0", std::make_shared<Wrapper>(pair));
  EXPECT_EQ(Names(tree.NamedParameters()), names);
  EXPECT_EQ(pair->path(), "h.0");
  const auto gain = std::make_shared<Gain>();
  tree.ReplaceChild("h.0.second", gain);
  EXPECT_EQ(gain->weight()->name(), "h.0.second.weight");
  EXPECT_THAT(MessageOf<Error>([&] { tree.ReplaceChild("h.0.third", gain); }),
              HasSubstr("no child module 'third'; there are: first second"));
  EXPECT_THROW(tree.ReplaceChild("h.0.", gain), ArgumentError);
}

// Another interface, to which a Layer can be adapted.
struct Scaled {
  Tensor x;
  double factor = 1;
};
template <class F>
void ForEachTensor(const Scaled& scaled, const F& f) {
  f(scaled.x);
}
using ScaledModule = ModuleOf<Scaled(Scaled)>;

}  // namespace

template <>
class SlotAdapter<ScaledModule> : public ScaledModule {
 public:
  using From = Layer;
  explicit SlotAdapter(std::shared_ptr<Layer> layer) : layer_(std::move(layer)) {}
  Scaled Forward(Scaled in) override { return {(*layer_)(in.x), in.factor}; }

 private:
  std::shared_ptr<Layer> layer_;
};

namespace {

TEST(ReplaceTest, AnAdaptedModuleIsInTheTreeAndItsAdapterIsNot) {
  struct Owner : Layer {
    Tensor Forward(const Tensor& x) override { return child(Scaled{x, 3}).x; }
    Child<ScaledModule> child{this, "child", std::make_shared<Gain>()};
  } owner;
  owner.Materialize(kCpu, 0, DType::kF64);
  EXPECT_THAT(Names(owner.NamedParameters()), ElementsAre("child.weight"));
  EXPECT_THAT(Names(owner.NamedModules()), ElementsAre("", "child"));
  int hooks = 0;
  owner.child.module()->AddPreForwardHook([&](Module&) { ++hooks; });
  EXPECT_THAT(Values(owner(Tensor::FromVector<double>({1, 2}, {2}))), ElementsAre(12, 26));
  EXPECT_EQ(hooks, 1);
  struct Other : ModuleOf<Tensor(const Tensor&, int64_t)> {
    Tensor Forward(const Tensor& x, int64_t) override { return x; }
  };
  EXPECT_THAT(MessageOf<Error>([&] { owner.ReplaceChild("child", std::make_shared<Other>()); }),
              HasSubstr("'child' cannot be replaced by a module of another interface"));
}

TEST(ReplaceTest, AChildThatIsDestroyedIsNoChildAnyMore) {
  struct Parent : Layer {
    std::optional<Child<Layer>> first, second;
    Tensor Forward(const Tensor& x) override { return x; }
  } parent;
  parent.first.emplace(&parent, "first", std::make_shared<Gain>());
  parent.second.emplace(&parent, "second", std::make_shared<Gain>(3));
  parent.first.reset();
  EXPECT_THAT(Names(parent.NamedParameters()), ElementsAre("second.weight"));
  parent.first.emplace(&parent, "first", std::make_shared<Gain>());  // its name is free again
  EXPECT_THAT(Names(parent.NamedModules()), ElementsAre("", "second", "first"));
}

TEST(ReplaceTest, AChildMayOutliveItsOwner) {
  auto owner = std::make_unique<Gain>();
  const auto child = std::make_unique<Child<Layer>>(owner.get(), "child", std::make_shared<Gain>());
  owner.reset();
  EXPECT_EQ(child->module()->NumParameters(), 2);
}

// A module that contains itself, directly or through others.
TEST(ReplaceTest, ACycleIsAnErrorThatNamesThePath) {
  const auto pair = std::make_shared<Pair>();
  const auto adapted = std::make_shared<Adapted>(std::make_shared<Gain>());
  const auto error = [&](Module& module) {
    return MessageOf<ArgumentError>([&] { module.NamedParameters(); });
  };
  adapted->ReplaceChild("base", adapted);
  EXPECT_THAT(error(*adapted),
              HasSubstr("the module at 'base' is the model itself, which would contain itself"));
  adapted->ReplaceChild("base", pair);
  EXPECT_EQ(error(*adapted), "no error");
  pair->ReplaceChild("first", adapted);
  EXPECT_THAT(error(*adapted), HasSubstr("the module at 'base.first' is the model itself"));
  Adapted outer(adapted);
  EXPECT_THAT(error(outer), HasSubstr("the module at 'base.base.first' is the one at 'base', which "
                                      "would contain itself; put another module there"));
  EXPECT_THAT(MessageOf([&] { outer.Materialize(kCpu, 0); }), HasSubstr("contain itself"));
  pair->ReplaceChild("first", std::make_shared<Gain>());
  // The same module in two places is not a cycle.
  const auto shared = std::make_shared<Gain>();
  pair->ReplaceChild("first", shared);
  pair->ReplaceChild("second", shared);
  EXPECT_EQ(error(outer), "no error");
}

// ---- Parameters ----

TEST(ParameterTest, TheLeafSurvivesNewValues) {
  Gain gain;
  gain.Materialize(kCpu, 0, DType::kF64);
  Leaf* leaf = &gain.weight()->leaf();
  const Tensor main = Tensor::Zeros({2}, DType::kF32);
  leaf->SetDestination(main);
  gain.Materialize(kCpu, 0, DType::kF64);
  EXPECT_EQ(&gain.weight()->leaf(), leaf);
  gain.weight()->SetValue(Tensor::FromVector<double>({7, 8}, {2}));
  const Tensor x = Tensor::FromVector<double>({1, 2}, {2});
  const Tensor y = gain(x);
  EXPECT_THAT(Values(y), ElementsAre(7, 16));
  Backward(Sum(y));
  EXPECT_THAT(Values(main), ElementsAre(1, 2));
  EXPECT_THAT(MessageOf<Error>([&] { gain.weight()->SetValue(Tensor::Zeros({3}, DType::kF64)); }),
              HasSubstr("parameter 'weight' has shape [2], got f64[3]"));
}

TEST(ParameterTest, FrozenOnesCollectNothing) {
  Gain gain;
  gain.Materialize(kCpu, 0, DType::kF64);
  gain.weight()->SetTrainable(false);
  EXPECT_FALSE(gain.weight()->value().requires_grad());
  Backward(Sum(gain(Input())));
  EXPECT_FALSE(gain.weight()->grad().defined());
  gain.weight()->SetTrainable(true);
  Backward(Sum(gain(Input())));
  EXPECT_TRUE(gain.weight()->grad().defined());
  gain.ZeroGrad();
  EXPECT_FALSE(gain.weight()->grad().defined());
}

// ---- Hooks ----

class HookTest : public testing::Test {
 protected:
  void Watch(Module& module, const std::string& name) {
    const auto log = [this](const std::string& what) {
      return [this, what](Module&) { events_.push_back(what); };
    };
    module.AddPreForwardHook(log(name + " >"));
    module.AddPostForwardHook(log(name + " <"));
    module.AddPreBackwardHook(log(name + " back >"));
    module.AddPostBackwardHook(log(name + " back <"));
  }
  // Records when the parameters become ready.
  struct Ready : BackwardObserver {
    std::vector<std::string>* events;
    void OnLeafReady(Leaf& leaf) override { events->push_back(leaf.name()); }
  };
  void RunBackward(const Tensor& loss) {
    Ready ready;
    ready.events = &events_;
    events_.clear();
    Backward(loss, {}, {.observers = {&ready}});
  }

  std::vector<std::string> events_;
};

TEST_F(HookTest, NestedModules) {
  Tree tree;
  tree.Materialize(kCpu, 0, DType::kF64);
  for (auto& [name, module] : tree.NamedModules()) Watch(*module, name.empty() ? "tree" : name);
  const Tensor loss = Sum(tree(Tensor::FromVector<double>({1, 2}, {2})));
  EXPECT_THAT(events_, ElementsAre("tree >", "h.0 >", "h.0.first >", "h.0.first <", "h.0.second >",
                                   "h.0.second <", "h.0 <", "h.1 >", "h.1 <", "tree <"));
  RunBackward(loss);
  EXPECT_THAT(
      events_,
      ElementsAre("tree back >", "h.1 back >", "h.1.weight", "h.1 back <", "h.0 back >", "h.0.bias",
                  "h.0.second back >", "h.0.second.weight", "h.0.second back <", "h.0.first back >",
                  "h.0.first.weight", "h.0.first back <", "h.0 back <", "tree back <"));
}

TEST_F(HookTest, OfChildrenThatAreComputedInOnePass) {
  struct Both : Layer {
    Tensor Forward(const Tensor& x) override {
      return a->WithHooks([&] {
        return b->WithHooks(
            [&] { return Mul(Mul(x, a->weight()->value()), b->weight()->value()); });
      });
    }
    Child<Gain> a{this, "a", std::make_shared<Gain>()}, b{this, "b", std::make_shared<Gain>()};
  } both;
  both.Materialize(kCpu, 0, DType::kF64);
  Watch(*both.a, "a");
  Watch(*both.b, "b");
  const Tensor loss = Sum(both(Tensor::FromVector<double>({1, 2}, {2})));
  EXPECT_THAT(events_, ElementsAre("a >", "b >", "b <", "a <"));
  RunBackward(loss);
  EXPECT_THAT(events_,
              ElementsAre("a back >", "b back >", "b.weight", "a.weight", "b back <", "a back <"));
}

TEST_F(HookTest, TwoHooksRunInTheOrderInWhichTheyWereAdded) {
  Gain gain;
  gain.Materialize(kCpu, 0, DType::kF64);
  Watch(gain, "1");
  Watch(gain, "2");
  const Tensor loss = Sum(gain(Input()));
  EXPECT_THAT(events_, ElementsAre("1 >", "2 >", "1 <", "2 <"));
  RunBackward(loss);
  EXPECT_THAT(events_,
              ElementsAre("1 back >", "2 back >", "unnamed", "weight", "1 back <", "2 back <"));
}

TEST_F(HookTest, AModuleCalledTwiceBeginsAndEndsTwice) {
  Gain gain;
  gain.Materialize(kCpu, 0, DType::kF64);
  Watch(gain, "gain");
  RunBackward(Sum(gain(gain(Tensor::FromVector<double>({1, 2}, {2})))));
  EXPECT_THAT(events_,
              ElementsAre("gain back >", "gain back <", "gain back >", "weight", "gain back <"));
}

TEST_F(HookTest, SeveralOutputsBeginWithWhicheverRunsFirst) {
  struct Two : ModuleOf<std::pair<Tensor, std::vector<Tensor>>(const Tensor&)> {
    std::shared_ptr<Parameter> a = AddParameter("a", {2}, CountingInit, false);
    std::shared_ptr<Parameter> b = AddParameter("b", {2}, CountingInit, false);
    std::pair<Tensor, std::vector<Tensor>> Forward(const Tensor& x) override {
      const Tensor first = Mul(x, a->value());
      return {first, {Mul(x, b->value())}};  // the second output's node runs first in backward
    }
  };
  Two two;
  two.Materialize(kCpu, 0, DType::kF64);
  Watch(two, "two");
  const Tensor x = Tensor::FromVector<double>({1, 2}, {2});
  const auto both = two(x);
  RunBackward(Sum(test::Add(both.first, both.second[0])));
  EXPECT_THAT(events_, ElementsAre("two back >", "b", "a", "two back <"));
  RunBackward(Sum(two(x).first));
  EXPECT_THAT(events_, ElementsAre("two back >", "a", "two back <"));
  RunBackward(Sum(two(x).second[0]));
  EXPECT_THAT(events_, ElementsAre("two back >", "b", "two back <"));
}

TEST_F(HookTest, NothingToHangOnUnderNoGrad) {
  Gain gain;
  gain.Materialize(kCpu, 0, DType::kF64);
  Watch(gain, "gain");
  NoGrad no_grad;
  EXPECT_FALSE(gain(Input()).requires_grad());
  EXPECT_THAT(events_, ElementsAre("gain >", "gain <"));
}

TEST_F(HookTest, AModuleThatIsGoneBeforeBackwardIsAnErrorThatSaysSo) {
  for (const bool before : {true, false}) {
    auto gain = std::make_unique<Gain>();
    gain->Materialize(kCpu, 0, DType::kF64);
    gain->AssignNames("h.3");
    const auto weight = gain->weight();
    const auto hook = [this](Module& module) { events_.push_back(module.path()); };
    if (before) {
      gain->AddPreBackwardHook(hook);
    } else {
      gain->AddPostBackwardHook(hook);
    }
    const Tensor loss = Sum((*gain)(Input()));
    gain.reset();
    EXPECT_THAT(MessageOf<Error>([&] { Backward(loss); }),
                HasSubstr("the module 'h.3' was destroyed, with its backward hooks, before the "
                          "backward of what it computed: keep the module alive until then"));
    EXPECT_THAT(events_, ElementsAre());
  }
}

TEST_F(HookTest, AModuleThatReturnsItsInputDisturbsNobody) {
  struct Identity : Layer {
    Tensor Forward(const Tensor& x) override { return x; }
  };
  Gain gain;
  Identity identity;
  gain.Materialize(kCpu, 0, DType::kF64);
  Watch(gain, "gain");
  Watch(identity, "identity");
  RunBackward(Sum(identity(gain(Tensor::FromVector<double>({1, 2}, {2})))));
  EXPECT_THAT(events_, ElementsAre("identity back >", "gain back >", "weight", "identity back <",
                                   "gain back <"));
  identity(Input());  // a leaf has no node
}

}  // namespace
}  // namespace lockstep
