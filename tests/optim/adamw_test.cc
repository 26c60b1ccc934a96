#include "optim/adamw.h"

#include <cmath>
#include <map>

#include "core/autograd/engine.h"
#include "core/thread_pool.h"
#include "kernels/adamw/adamw.h"
#include "kernels/layer_norm/layer_norm.h"
#include "optim/clip.h"
#include "tests/optim/optim_test_util.h"

namespace lockstep::optim {
namespace {

using Parameters = std::vector<std::shared_ptr<Parameter>>;

// Gradients of the parameters at a step: functions of only (parameter's name, step).
void SetGradients(const Parameters& parameters, int64_t step, double scale = 1) {
  for (const auto& p : parameters) {
    const uint64_t stream = HashName(p->name().data(), p->name().size()) + step;
    p->leaf().SetGrad(Noise(p->value().shape(), stream, scale, p->value().dtype()));
  }
}

void Train(AdamW& adamw, int64_t begin, int64_t end, double max_norm = 0.5) {
  StepState state(kCpu, 1);
  for (int64_t step = begin; step < end; ++step) {
    const auto training = adamw.BeginStep(state, step, 0.01 / static_cast<double>(step + 1));
    SetGradients(adamw.parameters(), step);
    ClipGradNorm(adamw.parameters(), max_norm, state);
    adamw.Step(state);
    adamw.ZeroGrad();
  }
}

Parameters Model(DType dtype = DType::kF32) {
  return {MakeParameter("w", Noise({7, 11}, 1, 1, dtype), true),
          MakeParameter("b", Noise({13}, 2, 1, dtype), false),
          MakeParameter("large", Noise({3, 7001}, 3, 1, dtype), true)};
}

std::map<std::string, std::vector<uint8_t>> Everything(const AdamW& adamw) {
  std::map<std::string, std::vector<uint8_t>> out;
  for (const auto& p : adamw.parameters()) out[p->name()] = Bits(p->value());
  for (const auto& [name, tensor] : adamw.NamedState()) out[name] = Bits(tensor);
  return out;
}

// ---- Against PyTorch (tests/peers/make_adamw_golden.py). ----

void CompareWithTorch(DType dtype, double tolerance) {
  const Golden golden = ReadGolden("adamw");
  const auto values = [&](const std::string& name) -> const std::vector<double>& {
    return golden.at(StrCat(dtype, ".", name));
  };
  const auto tensor = [&](const std::string& name, const Shape& shape) {
    return Tensor::FromVector(values(name), shape).To(dtype);
  };
  AdamW adamw({MakeParameter("w", tensor("w.init", {4, 5}), true),
               MakeParameter("b", tensor("b.init", {6}), false)},
              {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1});
  StepState state(kCpu, 1);
  for (int64_t step = 0; step < 12; ++step) {
    const auto training = adamw.BeginStep(state, step, values(StrCat("lr.", step)).at(0));
    for (const auto& p : adamw.parameters()) {
      p->leaf().SetGrad(tensor(StrCat(p->name(), ".grad.", step), p->value().shape()));
    }
    ClipGradNorm(adamw.parameters(), 1.0, state);
    const double norm = values(StrCat("norm.", step)).at(0);
    EXPECT_NEAR(state.Read().grad_norm, norm, 2e-7 * norm);
    adamw.Step(state);
    adamw.ZeroGrad();
    std::map<std::string, Tensor> all;
    for (const auto& [name, t] : adamw.NamedState()) all[name] = t;
    for (const auto& p : adamw.parameters()) all[p->name() + ".value"] = p->value();
    EXPECT_EQ(all.size(), 6u);
    for (const auto& [name, t] : all) {
      const std::string key = StrCat(name, ".", step);
      ExpectClose(t, values(key), tolerance, key);
    }
  }
}

TEST(AdamWTest, FollowsTorchInF32) { CompareWithTorch(DType::kF32, 1e-6); }
// Learning rate, corrections and clip factor are f32 values.
TEST(AdamWTest, FollowsTorchInF64) { CompareWithTorch(DType::kF64, 1e-7); }

// ---- Against plain loops. ----

TEST(AdamWTest, FollowsPlainLoopsInF64) {
  const AdamWOptions o = {.beta1 = 0.8, .beta2 = 0.9, .eps = 1e-3, .weight_decay = 0.3};
  AdamW adamw(Model(DType::kF64), o);
  std::map<std::string, std::vector<double>> value, m, v;
  for (const auto& p : adamw.parameters()) value[p->name()] = p->value().ToVector<double>();
  StepState state(kCpu, 1);
  for (int64_t step = 0; step < 5; ++step) {
    const double lr = static_cast<float>(0.1 / static_cast<double>(step + 1));
    const auto training = adamw.BeginStep(state, step, lr);
    SetGradients(adamw.parameters(), step);
    for (const auto& p : adamw.parameters()) {
      const std::vector<double> g = p->grad().ToVector<double>();
      auto &pv = value[p->name()], &pm = m[p->name()], &pq = v[p->name()];
      pm.resize(g.size());
      pq.resize(g.size());
      for (size_t i = 0; i < g.size(); ++i) {
        pm[i] = o.beta1 * pm[i] + (1 - o.beta1) * g[i];
        pq[i] = o.beta2 * pq[i] + (1 - o.beta2) * g[i] * g[i];
        const double mean = pm[i] / (1 - std::pow(o.beta1, static_cast<double>(step + 1)));
        const double square = pq[i] / (1 - std::pow(o.beta2, static_cast<double>(step + 1)));
        pv[i] -= lr * (p->decay() ? o.weight_decay : 0) * pv[i];
        pv[i] -= lr * mean / (std::sqrt(square) + o.eps);
      }
    }
    adamw.Step(state);
    adamw.ZeroGrad();
  }
  for (const auto& p : adamw.parameters()) {
    ExpectClose(p->value(), value[p->name()], 1e-7, p->name());
  }
  for (const auto& [name, tensor] : adamw.NamedState()) {
    const std::string parameter = name.substr(0, name.find('.'));
    ExpectClose(tensor, name.ends_with("_sq") ? v[parameter] : m[parameter], 1e-13, name);
  }
}

// ---- Laws. ----

TEST(AdamWTest, ZeroGradientAtTheFirstStepOnlyDecays) {
  AdamW adamw(Model(), {.weight_decay = 0.1});
  StepState state(kCpu, 1);
  const auto training = adamw.BeginStep(state, 0, 0.25);
  std::map<std::string, std::vector<float>> before;
  for (const auto& p : adamw.parameters()) {
    before[p->name()] = p->value().ToVector<float>();
    p->leaf().SetGrad(Tensor::Zeros(p->value().shape(), DType::kF32));
  }
  adamw.Step(state);
  adamw.ZeroGrad();
  for (const auto& p : adamw.parameters()) {
    const float keep = p->decay() ? static_cast<float>(1 - 0.25 * 0.1) : 1;
    std::vector<float> want = before[p->name()];
    for (float& x : want) x *= keep;
    EXPECT_EQ(p->value().ToVector<float>(), want) << p->name();
  }
}

TEST(AdamWTest, TheFirstStepHasTheLengthOfTheLearningRate) {
  AdamW adamw({MakeParameter("p", Tensor::Zeros({100}, DType::kF32), false)}, {.eps = 0});
  StepState state(kCpu, 1);
  const auto training = adamw.BeginStep(state, 0, 0.125);
  SetGradients(adamw.parameters(), 0, 1e-3);
  const std::vector<float> grad = adamw.parameters()[0]->grad().ToVector<float>();
  adamw.Step(state);
  adamw.ZeroGrad();
  const std::vector<float> value = adamw.parameters()[0]->value().ToVector<float>();
  for (size_t i = 0; i < grad.size(); ++i) {
    EXPECT_NEAR(value[i], grad[i] > 0 ? -0.125 : 0.125, 1e-7) << i;
  }
}

TEST(AdamWTest, NothingChangesWhereAGradientIsNotFinite) {
  for (const float bad : {HUGE_VALF, std::nanf("")}) {
    AdamW adamw(Model());
    Train(adamw, 0, 2);
    const auto before = Everything(adamw);
    StepState state(kCpu, 1);
    const auto training = adamw.BeginStep(state, 2, 0.1);
    SetGradients(adamw.parameters(), 2);
    adamw.parameters()[1]->grad().data<float>()[3] = bad;
    ClipGradNorm(adamw.parameters(), 1, state);
    adamw.Step(state);
    adamw.ZeroGrad();
    EXPECT_EQ(Everything(adamw), before);
    adamw.ZeroGrad();
    Train(adamw, 3, 4);  // BeginStep forgot it
    EXPECT_NE(Everything(adamw), before);
  }
}

TEST(AdamWTest, TheOrderOfParametersDoesNotMatter) {
  Parameters model = Model(), reversed = Model();
  std::reverse(reversed.begin(), reversed.end());
  AdamW a(model), b(reversed);
  Train(a, 0, 4);
  Train(b, 0, 4);
  EXPECT_EQ(Everything(a), Everything(b));
}

TEST(AdamWTest, BitsDoNotDependOnThreads) {
  const int threads = NumThreads();
  std::vector<std::map<std::string, std::vector<uint8_t>>> results;
  for (const int n : {1, 2, 3}) {
    SetNumThreads(n);
    AdamW adamw(Model());
    Train(adamw, 0, 4);
    results.push_back(Everything(adamw));
  }
  SetNumThreads(threads);
  EXPECT_EQ(results[1], results[0]);
  EXPECT_EQ(results[2], results[0]);
}

// An element's bits are the same wherever it lies in memory and whatever lies beside it, as sharded
// updates require.
TEST(AdamWTest, BitsDoNotDependOnCuttingAndAlignment) {
  constexpr int64_t kSize = 40'000;
  const auto update = [](const std::vector<int64_t>& cuts) {
    const Tensor value = Noise({kSize}, 1), grad = Noise({kSize}, 2, 0.1);
    const Tensor m = Noise({kSize}, 3, 0.1), v = Tensor::Full({kSize}, 0.01, DType::kF32);
    std::vector<UpdateTensors> parts;
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      const auto part = [&](const Tensor& t) { return t.Slice(0, cuts[i], cuts[i + 1]); };
      parts.push_back({.value = part(value),
                       .grad = part(grad),
                       .states = {part(m), part(v)},
                       .master = {},
                       .weight_decay = 0.1});
    }
    StepState state(kCpu, 1);
    state.Begin(5, 0.01, {{0.9, 0.999}});
    ops::AdamWUpdate(parts, {}, state);
    return std::vector{Bits(value), Bits(m), Bits(v)};
  };
  const auto whole = update({0, kSize});
  EXPECT_EQ(update({0, 1, 4, 9, 1000, 17'003, 17'004, 39'999, kSize}), whole);
  EXPECT_EQ(update({0, 20'001, kSize}), whole);
}

TEST(AdamWTest, LossScaleIsTakenOut) {
  const auto train = [](double scale) {
    AdamW adamw(Model());
    StepState state(kCpu, 1);
    if (scale != 1) state.EnableLossScaling({.init = scale});
    for (int64_t step = 0; step < 3; ++step) {
      const auto training = adamw.BeginStep(state, step, 0.01);
      SetGradients(adamw.parameters(), step, scale);
      ClipGradNorm(adamw.parameters(), 0.5, state);
      adamw.Step(state);
      adamw.ZeroGrad();
    }
    return Everything(adamw);
  };
  EXPECT_EQ(train(4096), train(1));  // a power of two scales exactly
}

// ---- 16 bits. ----

TEST(AdamWTest, MasterWeightsFollowTheF32Run) {
  Parameters narrow = Model(DType::kBF16), wide;
  for (const auto& p : narrow) {
    wide.push_back(MakeParameter(p->name(), p->value().Detach().To(DType::kF32), p->decay()));
  }
  AdamW a(narrow), b(wide);
  StepState state_of_a(kCpu, 1), state_of_b(kCpu, 1);
  for (int64_t step = 0; step < 4; ++step) {
    const auto training_a = a.BeginStep(state_of_a, step, 0.01);
    const auto training_b = b.BeginStep(state_of_b, step, 0.01);
    SetGradients(narrow, step);
    for (size_t i = 0; i < wide.size(); ++i) {
      wide[i]->leaf().SetGrad(narrow[i]->grad().To(DType::kF32));
    }
    a.Step(state_of_a);
    a.ZeroGrad();
    b.Step(state_of_b);
    b.ZeroGrad();
  }
  const auto kept = a.NamedState();
  for (size_t i = 0; i < wide.size(); ++i) {
    EXPECT_EQ(kept[3 * i + 2].first, wide[i]->name() + ".master");
    EXPECT_EQ(Bits(kept[3 * i + 2].second), Bits(wide[i]->value()));
    EXPECT_EQ(Bits(narrow[i]->value()), Bits(wide[i]->value().Detach().To(DType::kBF16)));
  }
}

// Steps of a quarter of the distance to the next bf16 number: rounded to the nearest, they would be
// lost.
TEST(AdamWTest, SmallStepsAreKept) {
  constexpr int64_t kSize = 4096;
  const auto train = [](const AdamWOptions& options) {
    AdamW adamw({MakeParameter("p", Tensor::Full({kSize}, 1, DType::kBF16), false)}, options);
    StepState state(kCpu, 1);
    for (int64_t step = 0; step < 100; ++step) {
      const auto training = adamw.BeginStep(state, step, 1e-3);
      adamw.parameters()[0]->leaf().SetGrad(Tensor::Full({kSize}, 1, DType::kBF16));
      adamw.Step(state);
      adamw.ZeroGrad();
    }
    double sum = 0;
    for (const double v :
         adamw.parameters()[0]->value().Detach().To(DType::kF64).ToVector<double>()) {
      sum += v;
    }
    return sum / kSize;
  };
  EXPECT_NEAR(train({}), 0.9, 0.004);
  // The walk's standard deviation is below sqrt(0.1 / 256 / 4096) = 3e-4.
  EXPECT_NEAR(train({.master_weights = false}), 0.9, 1.5e-3);
  EXPECT_NEAR(train({.master_weights = false, .state_dtype = DType::kBF16}), 0.9, 1.5e-3);
}

TEST(AdamWTest, RefusesDTypesThatItCannotKeep) {
  const auto p = MakeParameter("p", Noise({8}, 1, 1, DType::kF16), true);
  ExpectError<ArgumentError>([&] { AdamW a({p}, {.master_weights = false}); },
                             "the f16 parameter 'p' needs an f32 original");
  ExpectError<ArgumentError>([&] { AdamW a({p}, {.state_dtype = DType::kF16}); },
                             "AdamW: state_dtype must be f32 or bf16, got f16");
}

// ---- State. ----

TEST(AdamWTest, ResumesBitwise) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
    AdamW straight(Model(dtype));
    Train(straight, 0, 6);
    AdamW first(Model(dtype));
    Train(first, 0, 3);
    NamedTensors saved;
    for (const auto& [name, tensor] : first.NamedState()) saved.emplace_back(name, tensor.Clone());
    std::reverse(saved.begin(), saved.end());
    AdamW resumed(first.parameters());
    resumed.LoadState(saved);
    Train(resumed, 3, 6);
    EXPECT_EQ(Everything(resumed), Everything(straight)) << dtype;
  }
}

TEST(AdamWTest, NamesOfTheState) {
  std::vector<std::string> names;
  AdamW adamw({MakeParameter("h.0.w", Noise({2}, 1), true),
               MakeParameter("b", Noise({3}, 1, 1, DType::kBF16), false)});
  for (const auto& [name, tensor] : adamw.NamedState()) {
    names.push_back(name);
    EXPECT_EQ(tensor.dtype(), DType::kF32);
  }
  EXPECT_THAT(names, testing::ElementsAre("h.0.w.exp_avg", "h.0.w.exp_avg_sq", "b.exp_avg",
                                          "b.exp_avg_sq", "b.master"));
}

TEST(AdamWTest, StateThatDoesNotFitIsRefusedAndNothingChanges) {
  AdamW adamw(Model());
  Train(adamw, 0, 2);
  const auto before = Everything(adamw);
  const auto expect = [&](auto change, const std::string& message) {
    NamedTensors state;
    for (const auto& [name, tensor] : adamw.NamedState()) {
      state.emplace_back(name, Tensor::Full(tensor.shape(), 9, tensor.dtype()));
    }
    change(state);
    ExpectError<InputError>([&] { adamw.LoadState(state); }, message);
    EXPECT_EQ(Everything(adamw), before);
  };
  expect([](auto& s) { s.pop_back(); }, "the tensor 'large.exp_avg_sq' is missing (5 of 6");
  expect([](auto& s) { s[0].first = "x.exp_avg"; }, "unknown tensor 'x.exp_avg'");
  expect([](auto& s) { s.push_back(s[1]); }, "the tensor 'w.exp_avg_sq' is given twice");
  expect(
      [](auto& s) {
        s[1].second = Tensor::Zeros({11, 7}, DType::kF32);
      },
      "'w.exp_avg_sq' must be f32[7, 11], got f32[11, 7]");
  expect([](auto& s) { s[5].second = s[5].second.To(DType::kBF16); },
         "'large.exp_avg_sq' must be f32[3, 7001], got bf16[3, 7001] on cpu: it was saved with "
         "state_dtype = bf16: use that");
}

TEST(AdamWTest, StateWithOrWithoutOriginalsNamesTheOption) {
  const auto adamw = [](bool master_weights) {
    return AdamW({MakeParameter("w", Noise({3}, 1, 1, DType::kBF16), false)},
                 {.weight_decay = 0, .master_weights = master_weights});
  };
  AdamW with = adamw(true), without = adamw(false);
  ExpectError<InputError>([&] { without.LoadState(with.NamedState()); },
                          "unknown tensor 'w.master': it is the f32 original of a 16-bit weight, "
                          "and this optimizer keeps none: use master_weights = true");
  ExpectError<InputError>([&] { with.LoadState(without.NamedState()); },
                          "'w.master' is missing (2 of 3 are there): it was saved without f32 "
                          "originals of 16-bit weights: use master_weights = false");
}

// ---- Parameters. ----

TEST(AdamWTest, LeavesParametersWithoutAGradientAlone) {
  AdamW adamw(Model());
  const auto before = Everything(adamw);
  StepState state(kCpu, 1);
  const auto training = adamw.BeginStep(state, 0, 0.1);
  ExpectError<ArgumentError>([&] { adamw.Step(state); },
                             "AdamW: none of the 3 parameters has a gradient: run Backward");
  adamw.parameters()[1]->leaf().SetGrad(Noise({13}, 5));
  adamw.Step(state);
  adamw.ZeroGrad();
  const auto after = Everything(adamw);
  for (const auto& [name, bits] : after) {
    EXPECT_EQ(bits == before.at(name), !name.starts_with("b")) << name;
  }
}

TEST(AdamWTest, FrozenParametersHaveNoState) {
  Parameters model = Model();
  model[0]->SetTrainable(false);
  const AdamW adamw(model);
  EXPECT_EQ(adamw.parameters().size(), 2u);
  EXPECT_EQ(adamw.NamedState().front().first, "b.exp_avg");
}

TEST(AdamWTest, AnUpdateBetweenForwardAndBackwardIsNoticed) {
  Parameters model = {MakeParameter("w", Noise({8}, 1), true)};
  AdamW adamw(model);
  Tensor x = Noise({2, 8}, 2);
  x.SetRequiresGrad();
  StepState state(kCpu, 1);
  const auto training = adamw.BeginStep(state, 0, 0.1);
  const Tensor y = ops::LayerNorm(x, model[0]->value());
  SetGradients(model, 0);
  adamw.Step(state);
  adamw.ZeroGrad();
  ExpectError<Error>(
      [&] {
        Backward(y, Tensor::Full({2, 8}, 1, DType::kF32));
      },
      "the weight of layer_norm (f32[8] on cpu) as it was in forward");
}

TEST(AdamWTest, Errors) {
  const auto w = MakeParameter("w", Noise({2}, 1), true);
  ExpectError<ArgumentError>(
      [&] {
        AdamW a({w, MakeParameter("w", Noise({3}, 1), true)});
      },
      "two parameters of an optimizer are named 'w'");
  ExpectError<ArgumentError>([&] { AdamW a({w, nullptr}); }, "null parameter");
  const auto expect = [&](const AdamWOptions& options, const std::string& message) {
    ExpectError<ArgumentError>([&] { AdamW a({w}, options); }, message);
  };
  expect({.beta1 = 1}, "AdamW: beta1 must be in [0, 1), got 1");
  expect({.beta1 = std::nan("")}, "AdamW: beta1 must be in [0, 1)");
  expect({.beta2 = -0.1}, "AdamW: beta2 must be in [0, 1), got -0.1");
  expect({.eps = -1}, "AdamW: eps must be finite and at least 0, got -1");
  expect({.weight_decay = HUGE_VAL}, "AdamW: weight_decay must be finite and at least 0, got inf");
  AdamW adamw({w});
  StepState state(kCpu, 1);
  ExpectError<ArgumentError>([&] { (void)adamw.BeginStep(state, -1, 0.1); },
                             "the step must be at least 0, got -1");
  ExpectError<ArgumentError>([&] { (void)adamw.BeginStep(state, 7, std::nan("")); },
                             "the learning rate of step 7 must be finite");
}

TEST(AdamWTest, OptimizerOfAModelWithoutMemory) {
  auto p = std::make_shared<Parameter>(
      Shape{3},
      [](std::span<float> values, int64_t, uint64_t, const std::string&) {
        for (float& v : values) v = 1;
      },
      true);
  p->set_name("p");
  AdamW adamw({p});
  EXPECT_TRUE(adamw.NamedState()[0].second.device().is_meta());
  p->Materialize(kCpu, DType::kF32, 1);
  StepState state(kCpu, 1);
  ExpectError<ArgumentError>(
      [&] { (void)adamw.BeginStep(state, 0, 0.1); },
      "the parameter 'p' is f32[3] on cpu, but its state was made for f32[3] on meta: make the "
      "optimizer after Materialize");
}

}  // namespace
}  // namespace lockstep::optim
