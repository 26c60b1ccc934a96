// Groups of parameters: against PyTorch's param_groups, the laws, and users' mistakes.
#include <cmath>
#include <functional>
#include <map>

#include "optim/adamw.h"
#include "optim/clip.h"
#include "optim/lion.h"
#include "optim/muon.h"
#include "optim/sgd.h"
#include "tests/gpu_test.h"
#include "tests/optim/optim_test_util.h"

namespace lockstep::optim {
namespace {

using Parameters = std::vector<std::shared_ptr<Parameter>>;
using Groups = std::vector<ParameterGroup>;
using Make = std::function<std::unique_ptr<Optimizer>(Groups)>;

template <class O, class Options>
Make With(const Options& options) {
  return [=](Groups groups) { return std::make_unique<O>(std::move(groups), options); };
}

struct Kind {
  const char* name;
  Make make;
  bool has_betas;
};

const std::vector<Kind>& Kinds() {
  static const std::vector<Kind> kinds = {
      {"adamw", With<AdamW>(AdamWOptions{.beta2 = 0.95, .weight_decay = 0.1}), true},
      {"sgd", With<Sgd>(SgdOptions{.momentum = 0.9, .weight_decay = 0.1}), false},
      {"lion", With<Lion>(LionOptions{.beta2 = 0.95, .weight_decay = 0.1}), true},
      {"muon", With<Muon>(MuonOptions{.weight_decay = 0.1}), true}};
  return kinds;
}

Parameters Model(Device device = kCpu, DType dtype = DType::kF32) {
  const auto noise = [&](const Shape& shape, uint64_t stream) {
    return Noise(shape, stream, 1, dtype).To(device);
  };
  return {MakeParameter("w", noise({7, 11}, 1), true), MakeParameter("b", noise({13}, 2), false),
          MakeParameter("v", noise({9, 5}, 3), true)};
}

// The parameters [begin, end), with these settings.
ParameterGroup Part(const Parameters& all, int64_t begin, int64_t end, ParameterGroup group = {}) {
  group.parameters.assign(all.begin() + begin, all.begin() + end);
  return group;
}

void Train(Optimizer& optimizer, int64_t begin, int64_t end, double lr = 0.01,
           double max_norm = 0.5) {
  const Device device = optimizer.parameters()[0]->value().device();
  StepState state(device, 1);
  for (int64_t step = begin; step < end; ++step) {
    const auto training = optimizer.BeginStep(state, step, lr / static_cast<double>(step + 1));
    for (const auto& p : optimizer.parameters()) {
      const uint64_t stream = HashName(p->name()) + static_cast<uint64_t>(step);
      p->leaf().SetGrad(Noise(p->value().shape(), stream, 1, p->value().dtype()).To(device));
    }
    ClipGradNorm(optimizer.parameters(), max_norm, state);
    optimizer.Step(state);
    optimizer.ZeroGrad();
  }
}

std::map<std::string, std::vector<uint8_t>> Everything(const Optimizer& optimizer) {
  std::map<std::string, std::vector<uint8_t>> out;
  for (const auto& p : optimizer.parameters()) out[p->name()] = Bits(p->value().To(kCpu));
  for (const auto& [name, tensor] : optimizer.NamedState()) out[name] = Bits(tensor.To(kCpu));
  return out;
}

// tests/peers/make_optimizer_goldens.py.
TEST(ParameterGroups, FollowTorchs) {
  const Golden golden = ReadGolden("groups");
  for (const Kind& kind : Kinds()) {
    SCOPED_TRACE(kind.name);
    const auto values = [&](const std::string& name) -> const std::vector<double>& {
      return golden.at(StrCat("f32.", kind.name, ".", name));
    };
    const auto tensor = [&](const std::string& name, const Shape& shape) {
      return Tensor::FromVector(values(name), shape).To(DType::kF32);
    };
    const Parameters all = {MakeParameter("w", tensor("w.init", {4, 6}), true),
                            MakeParameter("b", tensor("b.init", {5}), false),
                            MakeParameter("v", tensor("v.init", {7, 3}), true)};
    ParameterGroup own = {.parameters = {all[2]}, .lr_factor = 0.3, .weight_decay = 0.4};
    if (kind.has_betas) own.betas = Betas{0.7, 0.99};
    const auto optimizer = kind.make({Part(all, 0, 2), own});
    StepState state(kCpu, 1);
    for (int64_t step = 0; step < 6; ++step) {
      const auto training = optimizer->BeginStep(state, step, values(StrCat("lr.", step)).at(0));
      for (const auto& p : all) {
        p->leaf().SetGrad(tensor(StrCat(p->name(), ".grad.", step), p->value().shape()));
      }
      ClipGradNorm(all, 1.0, state);
      optimizer->Step(state);
      optimizer->ZeroGrad();
      std::map<std::string, Tensor> results;
      for (const auto& [name, t] : optimizer->NamedState()) results[name] = t;
      for (const auto& p : all) results[p->name() + ".value"] = p->value();
      for (const auto& [name, t] : results) {
        const std::string key = StrCat(name, ".", step);
        ExpectClose(t, values(key), std::string(kind.name) == "muon" ? 1e-5 : 1e-6, key);
      }
    }
  }
}

TEST(ParameterGroups, OfEqualSettingsAreOne) {
  for (const Kind& kind : Kinds()) {
    const Parameters one = Model(), parts = Model();
    const auto whole = kind.make({{.parameters = one}});
    const auto split = kind.make({Part(parts, 0, 1), Part(parts, 1, 3, {.lr_factor = 1})});
    Train(*whole, 0, 5);
    Train(*split, 0, 5);
    EXPECT_EQ(Everything(*split), Everything(*whole)) << kind.name;
  }
}

// A group with all settings of its own has the bits of an optimizer that has them.
TEST(ParameterGroups, AreOptimizersOfTheirOwn) {
  const Parameters together = Model(), first = Model(), second = Model();
  AdamW both(
      {Part(together, 0, 2),
       Part(together, 2, 3, {.lr_factor = 0.25, .weight_decay = 0.5, .betas = Betas{0.5, 0.75}})},
      {.beta2 = 0.95});
  AdamW a(Groups{Part(first, 0, 2)}, {.beta2 = 0.95});
  AdamW b(Groups{Part(second, 2, 3)}, {.beta1 = 0.5, .beta2 = 0.75, .weight_decay = 0.5});
  Train(both, 0, 5, 0.01, 0);
  Train(a, 0, 5, 0.01, 0);
  Train(b, 0, 5, 0.01 * 0.25, 0);
  auto expected = Everything(a);
  expected.merge(Everything(b));
  EXPECT_EQ(Everything(both), expected);
}

TEST(ParameterGroups, AFactorOfZeroLeavesTheWeights) {
  for (const Kind& kind : Kinds()) {
    const Parameters all = Model();
    const auto before = Bits(all[2]->value());
    const auto optimizer = kind.make({Part(all, 0, 2), Part(all, 2, 3, {.lr_factor = 0})});
    Train(*optimizer, 0, 2);
    EXPECT_EQ(Bits(all[2]->value()), before) << kind.name;
    EXPECT_NE(Bits(all[0]->value()), Bits(Model()[0]->value())) << kind.name;
  }
}

// State has the names of parameters only: it goes from one group to two.
TEST(ParameterGroups, StateIsLoadedAcrossThem) {
  for (const Kind& kind : Kinds()) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const auto straight = kind.make({{.parameters = Model(kCpu, dtype)}});
      Train(*straight, 0, 6);
      const Parameters all = Model(kCpu, dtype);
      const auto before = kind.make({{.parameters = all}});
      Train(*before, 0, 3);
      NamedTensors saved;
      for (const auto& [name, t] : before->NamedState()) saved.emplace_back(name, t.Clone());
      const auto after = kind.make({Part(all, 2, 3), Part(all, 0, 2)});
      after->LoadState(saved);
      Train(*after, 3, 6);
      EXPECT_EQ(Everything(*after), Everything(*straight)) << kind.name << " " << dtype;
    }
  }
}

class ParameterGroupsOnGpu : public test::GpuTest {};

TEST_F(ParameterGroupsOnGpu, HaveTheBitsOfTheCpu) {
  for (const Kind& kind : Kinds()) {
    if (std::string(kind.name) == "muon") continue;  // its products have bits of their own
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const auto trained = [&](Device device) {
        const Parameters all = Model(device, dtype);
        ParameterGroup own = {.lr_factor = 0.3, .weight_decay = 0.4};
        if (kind.has_betas) own.betas = Betas{0.7, 0.99};
        const auto optimizer = kind.make({Part(all, 0, 2), Part(all, 2, 3, own)});
        Train(*optimizer, 0, 4, 0.01, 0);
        return Everything(*optimizer);
      };
      EXPECT_EQ(trained(test::kGpu), trained(kCpu)) << kind.name << " " << dtype;
    }
  }
}

TEST(ParameterGroups, Mistakes) {
  const Parameters all = Model();
  const auto expect = [](const Groups& groups, const std::string& message) {
    ExpectError<ArgumentError>([&] { AdamW a(groups); }, message);
  };
  const ParameterGroup rest = Part(all, 0, 2);
  const auto own = [&](const ParameterGroup& settings) {
    return Groups{rest, Part(all, 2, 3, settings)};
  };
  expect({rest, Part(all, 1, 3)},
         "AdamW: the parameter 'b' is given twice, in the groups 0 and 1: leave it in one of them");
  expect({rest, {.parameters = {Model()[0]}}}, "two parameters of an optimizer are named 'w'");
  expect({rest, {.parameters = {nullptr}}}, "null parameter");
  expect(own({.lr_factor = -1}),
         "AdamW: lr_factor of group 1 must be finite and at least 0, got -1");
  expect(own({.lr_factor = std::nan("")}), "AdamW: lr_factor of group 1 must be finite");
  expect(own({.weight_decay = -0.5}), "AdamW: weight_decay of group 1 must be finite and at least");
  expect(own({.betas = Betas{1, 0.9}}), "AdamW: beta1 of group 1 must be in [0, 1), got 1");
  expect(own({.betas = Betas{0.9, -1}}), "AdamW: beta2 of group 1 must be in [0, 1), got -1");
  expect({Part(all, 0, 1), Part(all, 1, 2, {.weight_decay = 0.1}), Part(all, 2, 3)},
         "AdamW: the weight_decay of group 1 has no effect, since none of its parameters has "
         "decay(): call set_decay(true)");
  AdamW no_decay({Part(all, 0, 1), Part(all, 1, 3, {.weight_decay = 0})});
  ExpectError<ArgumentError>(
      [&] {
        Sgd s(own({.betas = Betas{0.9, 0.9}}));
      },
      "Sgd has no betas: leave out those of group 1");
}

TEST(ParameterGroups, OneWithNothingToTrain) {
  const Parameters all = Model();
  all[2]->SetTrainable(false);
  StepState state(kCpu, 1);
  for (const Groups& groups :
       {Groups{Part(all, 0, 2), Part(all, 2, 3)}, Groups{Part(all, 0, 2), {.parameters = {}}}}) {
    AdamW adamw(groups);
    ExpectError<ArgumentError>(
        [&] { (void)adamw.BeginStep(state, 0, 0.1); },
        StrCat("there is nothing to train: of the ", groups[1].parameters.size(),
               " parameters of group 1 none was trainable"));
  }
  AdamW none(Groups{});
  ExpectError<ArgumentError>([&] { (void)none.BeginStep(state, 0, 0.1); },
                             "of the 0 parameters none was trainable");
}

TEST(ParameterGroups, MoreBetasThanAStepHasCorrectionsFor) {
  Groups groups;
  for (int i = 0; i <= kMaxBetas; ++i) {
    groups.push_back({.parameters = {MakeParameter(StrCat("p", i), Noise({2}, 1), true)},
                      .betas = Betas{0.1 * i, 0.9}});
  }
  AdamW adamw(groups);
  StepState state(kCpu, 1);
  ExpectError<ArgumentError>([&] { (void)adamw.BeginStep(state, 0, 0.1); },
                             "a step has at most 8 different pairs of betas, got 9");
}

}  // namespace
}  // namespace lockstep::optim
