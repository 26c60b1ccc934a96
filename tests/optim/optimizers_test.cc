// Sgd, Lion and Muon, and decay of AdamW: against PyTorch, against plain loops of doubles, and what
// all optimizers promise.
#include <cmath>
#include <functional>
#include <map>

#include "core/thread_pool.h"
#include "optim/adamw.h"
#include "optim/clip.h"
#include "optim/lion.h"
#include "optim/muon.h"
#include "optim/sgd.h"
#include "tests/optim/optim_test_util.h"

namespace lockstep::optim {
namespace {

using Parameters = std::vector<std::shared_ptr<Parameter>>;
using Make = std::function<std::unique_ptr<Optimizer>(Parameters)>;

template <class O, class Options>
Make With(const Options& options) {
  return [=](Parameters p) { return std::make_unique<O>(std::move(p), options); };
}

// ---- Against PyTorch (tests/peers/make_optimizer_goldens.py). ----

// The parameters' values and the optimizer's state after each step of the variant.
void FollowTorch(const std::string& kind, const std::string& variant, const Make& make, DType dtype,
                 double tolerance) {
  SCOPED_TRACE(StrCat(kind, " ", variant, " ", dtype));
  const Golden golden = ReadGolden(kind);
  const auto values = [&](const std::string& name) -> const std::vector<double>& {
    return golden.at(StrCat(dtype, ".", variant, ".", name));
  };
  const auto tensor = [&](const std::string& name, const Shape& shape) {
    return Tensor::FromVector(values(name), shape).To(dtype);
  };
  const auto optimizer = make({MakeParameter("w", tensor("w.init", {4, 6}), true),
                               MakeParameter("v", tensor("v.init", {7, 3}), true),
                               MakeParameter("b", tensor("b.init", {5}), false)});
  StepState state(kCpu, 1);
  for (int64_t step = 0; step < 6; ++step) {
    const auto training = optimizer->BeginStep(state, step, values(StrCat("lr.", step)).at(0));
    for (const auto& p : optimizer->parameters()) {
      p->leaf().SetGrad(tensor(StrCat(p->name(), ".grad.", step), p->value().shape()));
    }
    ClipGradNorm(optimizer->parameters(), 1.0, state);
    optimizer->Step(state);
    optimizer->ZeroGrad();
    for (const auto& p : optimizer->parameters()) {
      const std::string key = StrCat(p->name(), ".value.", step);
      ExpectClose(p->value(), values(key), tolerance, key);
    }
    for (const auto& [name, t] : optimizer->NamedState()) {
      const std::string key = StrCat(name, ".", step);
      ExpectClose(t, values(key), tolerance, key);
    }
  }
}

// Learning rate, corrections and clip factor are f32 values, hence no more than 1e-7 in f64.
TEST(SgdTest, FollowsTorch) {
  const auto sgd = [](double momentum, bool nesterov) {
    return With<Sgd>(SgdOptions{.momentum = momentum, .nesterov = nesterov, .weight_decay = 0.1});
  };
  for (const auto& [dtype, tolerance] :
       std::map<DType, double>{{DType::kF32, 1e-6}, {DType::kF64, 1e-7}}) {
    FollowTorch("sgd", "plain", sgd(0, false), dtype, tolerance);
    FollowTorch("sgd", "momentum", sgd(0.9, false), dtype, tolerance);
    FollowTorch("sgd", "nesterov", sgd(0.9, true), dtype, tolerance);
  }
}

TEST(LionTest, FollowsTheReferenceInTorch) {
  const Make lion = With<Lion>(LionOptions{.beta1 = 0.9, .beta2 = 0.95, .weight_decay = 0.1});
  FollowTorch("lion", "lion", lion, DType::kF32, 1e-6);
  FollowTorch("lion", "lion", lion, DType::kF64, 1e-7);
}

// The iteration multiplies the rounding of small singular values: by 3.4^5 at most.
TEST(MuonTest, FollowsTorch) {
  const MuonOptions adamw = {.weight_decay = 0.1};
  MuonOptions spectral = adamw;
  spectral.scale = MuonScale::kSpectral;
  for (const auto& [dtype, tolerance] :
       std::map<DType, double>{{DType::kF32, 1e-5}, {DType::kF64, 1e-6}}) {
    FollowTorch("muon", "adamw", With<Muon>(adamw), dtype, tolerance);
    FollowTorch("muon", "spectral", With<Muon>(spectral), dtype, tolerance);
  }
}

// PyTorch's default, which orthogonalises in bf16, and rounds more often.
TEST(MuonTest, IsCloseToTorchInBF16) {
  FollowTorch("muon", "bf16", With<Muon>(MuonOptions{.weight_decay = 0.1}), DType::kF32, 2e-2);
  const MuonOptions narrow{.dtype = DType::kBF16, .weight_decay = 0.1};
  FollowTorch("muon", "bf16", With<Muon>(narrow), DType::kF32, 2e-2);
}

// ---- Laws. ----

// Gradients of the parameters at a step: functions of only (parameter's name, step).
void SetGradients(const Parameters& parameters, int64_t step, double scale = 1) {
  for (const auto& p : parameters) {
    const uint64_t stream = HashName(p->name().data(), p->name().size()) + step;
    p->leaf().SetGrad(Noise(p->value().shape(), stream, scale, p->value().dtype()));
  }
}

void Train(Optimizer& optimizer, int64_t begin, int64_t end, double loss_scale = 1) {
  StepState state(kCpu, 1);
  if (loss_scale != 1) state.EnableLossScaling({.init = loss_scale});
  for (int64_t step = begin; step < end; ++step) {
    const auto training = optimizer.BeginStep(state, step, 0.01 / static_cast<double>(step + 1));
    SetGradients(optimizer.parameters(), step, loss_scale);
    ClipGradNorm(optimizer.parameters(), 0.5, state);
    optimizer.Step(state);
    optimizer.ZeroGrad();
  }
}

Parameters Model(DType dtype = DType::kF32) {
  return {MakeParameter("w", Noise({7, 11}, 1, 1, dtype), true),
          MakeParameter("b", Noise({13}, 2, 1, dtype), false),
          MakeParameter("large", Noise({3, 7001}, 3, 1, dtype), true),
          MakeParameter("tall", Noise({80, 30}, 4, 1, dtype), true)};
}

std::map<std::string, std::vector<uint8_t>> Everything(const Optimizer& optimizer) {
  std::map<std::string, std::vector<uint8_t>> out;
  for (const auto& p : optimizer.parameters()) out[p->name()] = Bits(p->value());
  for (const auto& [name, tensor] : optimizer.NamedState()) out[name] = Bits(tensor);
  return out;
}

// Cautious, and at its end after five steps.
constexpr DecoupledDecay kFalling = {.cautious = true, .steps = 5};

std::vector<int64_t> RowsOfTall(const Parameter& p) {
  return p.name() == "tall" ? std::vector<int64_t>{50, 7, 23} : std::vector<int64_t>();
}

struct Kind {
  const char* name;
  Make make;
};

class AllOptimizers : public testing::TestWithParam<Kind> {
 protected:
  std::unique_ptr<Optimizer> New(Parameters p = Model()) { return GetParam().make(std::move(p)); }
};

INSTANTIATE_TEST_SUITE_P(
    , AllOptimizers,
    testing::Values(
        Kind{"Sgd", With<Sgd>(SgdOptions{.weight_decay = 0.1})},
        Kind{"SgdNesterov",
             With<Sgd>(SgdOptions{.momentum = 0.9, .nesterov = true, .weight_decay = 0.1})},
        Kind{"Lion", With<Lion>(LionOptions{.weight_decay = 0.1})},
        Kind{"Muon", With<Muon>(MuonOptions{})},
        Kind{"MuonOfSegments", With<Muon>(MuonOptions{.decay = kFalling, .segments = RowsOfTall})},
        Kind{"AdamWFalling", With<AdamW>(AdamWOptions{.weight_decay = 0.5, .decay = kFalling})}),
    [](const auto& info) { return info.param.name; });

TEST_P(AllOptimizers, NothingChangesWhereAGradientIsNotFinite) {
  for (const float bad : {HUGE_VALF, std::nanf("")}) {
    const auto optimizer = New();
    Train(*optimizer, 0, 2);
    const auto before = Everything(*optimizer);
    StepState state(kCpu, 1);
    const auto training = optimizer->BeginStep(state, 2, 0.1);
    SetGradients(optimizer->parameters(), 2);
    optimizer->parameters()[1]->grad().data<float>()[3] = bad;
    ClipGradNorm(optimizer->parameters(), 1, state);
    optimizer->Step(state);
    optimizer->ZeroGrad();
    EXPECT_EQ(Everything(*optimizer), before);
    optimizer->ZeroGrad();
    Train(*optimizer, 3, 4);  // BeginStep forgot it
    EXPECT_NE(Everything(*optimizer), before);
  }
}

TEST_P(AllOptimizers, ResumesBitwise) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
    const auto straight = New(Model(dtype));
    Train(*straight, 0, 6);
    const auto first = New(Model(dtype));
    Train(*first, 0, 3);
    NamedTensors saved;
    for (const auto& [name, tensor] : first->NamedState()) saved.emplace_back(name, tensor.Clone());
    std::reverse(saved.begin(), saved.end());
    const auto resumed = New(first->parameters());
    resumed->LoadState(saved);
    Train(*resumed, 3, 6);
    EXPECT_EQ(Everything(*resumed), Everything(*straight)) << dtype;
  }
}

TEST_P(AllOptimizers, BitsDependOnNeitherThreadsNorOrder) {
  const int threads = NumThreads();
  Parameters reversed = Model();
  std::reverse(reversed.begin(), reversed.end());
  const auto other = New(reversed);
  Train(*other, 0, 4);
  for (const int n : {1, 2, 3}) {
    SetNumThreads(n);
    const auto optimizer = New();
    Train(*optimizer, 0, 4);
    EXPECT_EQ(Everything(*optimizer), Everything(*other)) << n << " threads";
  }
  SetNumThreads(threads);
}

TEST_P(AllOptimizers, LossScaleIsTakenOut) {
  const auto train = [&](double scale) {
    const auto optimizer = New();
    Train(*optimizer, 0, 3, scale);
    return Everything(*optimizer);
  };
  EXPECT_EQ(train(4096), train(1));  // a power of two scales exactly
}

TEST_P(AllOptimizers, MasterWeightsFollowTheF32Run) {
  Parameters narrow = Model(DType::kBF16), wide;
  for (const auto& p : narrow) {
    wide.push_back(MakeParameter(p->name(), p->value().Detach().To(DType::kF32), p->decay()));
  }
  const auto a = New(narrow), b = New(wide);
  StepState state_of_a(kCpu, 1), state_of_b(kCpu, 1);
  for (int64_t step = 0; step < 4; ++step) {
    const auto training_a = a->BeginStep(state_of_a, step, 0.01);
    const auto training_b = b->BeginStep(state_of_b, step, 0.01);
    SetGradients(narrow, step);
    for (size_t i = 0; i < wide.size(); ++i) {
      wide[i]->leaf().SetGrad(narrow[i]->grad().To(DType::kF32));
    }
    a->Step(state_of_a);
    a->ZeroGrad();
    b->Step(state_of_b);
    b->ZeroGrad();
  }
  int masters = 0;
  const auto everything = Everything(*b);
  for (const auto& [name, tensor] : a->NamedState()) {
    if (!name.ends_with(".master")) continue;
    ++masters;
    EXPECT_EQ(Bits(tensor), everything.at(name.substr(0, name.size() - 7))) << name;
  }
  EXPECT_EQ(masters, 4);
  for (size_t i = 0; i < wide.size(); ++i) {
    EXPECT_EQ(Bits(narrow[i]->value()), Bits(wide[i]->value().Detach().To(DType::kBF16)));
  }
}

TEST_P(AllOptimizers, LeavesParametersWithoutAGradientAlone) {
  for (const size_t only : {size_t{0}, size_t{1}}) {
    const auto optimizer = New();
    const auto before = Everything(*optimizer);
    StepState state(kCpu, 1);
    const auto training = optimizer->BeginStep(state, 0, 0.1);
    ExpectError<ArgumentError>([&] { optimizer->Step(state); },
                               "none of the 4 parameters has a gradient: run Backward");
    const auto& p = optimizer->parameters()[only];
    p->leaf().SetGrad(Noise(p->value().shape(), 5));
    optimizer->Step(state);
    optimizer->ZeroGrad();
    for (const auto& [name, bits] : Everything(*optimizer)) {
      const bool own = name == p->name() || name.starts_with(p->name() + ".");
      EXPECT_EQ(bits == before.at(name), !own) << name;
    }
  }
}

TEST_P(AllOptimizers, RefusesStepsAndParametersThatDoNotFit) {
  const auto optimizer = New();
  StepState state(kCpu, 1);
  ExpectError<ArgumentError>([&] { (void)optimizer->BeginStep(state, -1, 0.1); },
                             "the step must be at least 0, got -1");
  ExpectError<ArgumentError>([&] { (void)optimizer->BeginStep(state, 7, std::nan("")); },
                             "the learning rate of step 7 must be finite");
  ExpectError<ArgumentError>(
      [&] {
        New({Model()[0], Model()[0]});
      },
      "two parameters of an optimizer are named 'w'");
}

TEST(OptimizersTest, NamesOfTheState) {
  const auto names = [](const Optimizer& optimizer) {
    std::vector<std::string> out;
    for (const auto& [name, tensor] : optimizer.NamedState()) out.push_back(name);
    return out;
  };
  const auto model = [] {
    return Parameters{MakeParameter("h.0.w", Noise({2, 3}, 1), true),
                      MakeParameter("b", Noise({3}, 1, 1, DType::kBF16), false)};
  };
  using testing::ElementsAre;
  EXPECT_THAT(names(Sgd(model())), ElementsAre("b.master"));
  EXPECT_THAT(names(Sgd(model(), {.momentum = 0.9})),
              ElementsAre("h.0.w.momentum_buffer", "b.momentum_buffer", "b.master"));
  EXPECT_THAT(names(Lion(model(), {.master_weights = false})),
              ElementsAre("h.0.w.exp_avg", "b.exp_avg"));
  EXPECT_THAT(names(Muon(model())),
              ElementsAre("h.0.w.momentum_buffer", "b.exp_avg", "b.exp_avg_sq", "b.master"));
}

// The update of a matrix has singular values near 1, times the scale: the rms of AdamW's 0.2.
TEST(MuonTest, UpdatesAreNearlyOrthogonal) {
  constexpr int64_t kRows = 40, kColumns = 60;
  Muon muon({MakeParameter("w", Tensor::Zeros({kRows, kColumns}, DType::kF32), true)},
            {.scale = MuonScale::kSpectral});
  StepState state(kCpu, 1);
  const auto training = muon.BeginStep(state, 0, 1);
  SetGradients(muon.parameters(), 0, 1e-3);
  muon.Step(state);
  const std::vector<float> w = muon.parameters()[0]->value().ToVector<float>();
  // x^T W W^T x lies between the squares of the least and the largest singular value.
  for (uint64_t stream = 0; stream < 20; ++stream) {
    const std::vector<float> x = Noise({kRows}, 100 + stream).ToVector<float>();
    double along = 0, length = 0;
    for (int64_t j = 0; j < kColumns; ++j) {
      double sum = 0;
      for (int64_t i = 0; i < kRows; ++i) sum += x[i] * w[i * kColumns + j];
      along += sum * sum;
    }
    for (const float v : x) length += v * v;
    EXPECT_GT(along / length, 0.6 * 0.6);
    EXPECT_LT(along / length, 1.3 * 1.3);
  }
}

// Newton and Schulz of X [rows, columns], in plain loops: a X + b (X X^T) X + c (X X^T)^2 X.
std::vector<double> Orthogonalized(std::vector<double> x, int64_t rows, int64_t columns) {
  double squares = 0;
  for (const double v : x) squares += v * v;
  for (double& v : x) v /= std::max(std::sqrt(squares), 1e-7);
  const auto times_gram = [&](const std::vector<double>& y) {  // (X X^T) y
    std::vector<double> out(y.size());
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < rows; ++j) {
        double dot = 0;
        for (int64_t k = 0; k < columns; ++k) dot += x[i * columns + k] * x[j * columns + k];
        for (int64_t k = 0; k < columns; ++k) out[i * columns + k] += dot * y[j * columns + k];
      }
    }
    return out;
  };
  for (int step = 0; step < 5; ++step) {
    const std::vector<double> once = times_gram(x), twice = times_gram(once);
    for (size_t i = 0; i < x.size(); ++i)
      x[i] = 3.4445 * x[i] - 4.775 * once[i] + 2.0315 * twice[i];
  }
  return x;
}

// With cautious decay that falls.
TEST(MuonTest, SegmentsFollowALoopOfDoubles) {
  const std::vector<int64_t> rows = {12, 6, 6};
  constexpr int64_t kColumns = 8, kSteps = 6;
  constexpr double kLr = 0.0625, kDecay = 0.5;  // which f32 holds
  for (const DType dtype : {DType::kF64, DType::kF32}) {
    const Tensor initial = Noise({24, kColumns}, 1, 1, dtype);
    Muon muon(Parameters{MakeParameter("w", initial.Clone(), true)},
              {.scale = MuonScale::kSpectral,
               .weight_decay = kDecay,
               .decay = {.cautious = true, .steps = 4},
               .segments = [&](const Parameter&) { return rows; }});
    std::vector<double> w = initial.To(DType::kF64).ToVector<double>(), m(w.size());
    for (int64_t step = 0; step < kSteps; ++step) {
      StepState state(kCpu, 1);
      const auto training = muon.BeginStep(state, step, kLr);
      const Tensor grad = Noise({24, kColumns}, 10 + static_cast<uint64_t>(step), 1, dtype);
      muon.parameters()[0]->leaf().SetGrad(grad.Clone());
      muon.Step(state);
      muon.ZeroGrad();
      const std::vector<double> g = grad.To(DType::kF64).ToVector<double>();
      const double decay = kLr * kDecay * std::max(0.0, 1 - static_cast<double>(step) / 4);
      int64_t begin = 0;
      for (const int64_t n : rows) {
        std::vector<double> u;
        for (int64_t i = begin * kColumns; i < (begin + n) * kColumns; ++i) {
          m[i] += 0.05 * (g[i] - m[i]);
          u.push_back(g[i] + 0.95 * (m[i] - g[i]));
        }
        u = Orthogonalized(u, n, kColumns);
        const double gain = std::sqrt(std::max(1.0, static_cast<double>(n) / kColumns));
        for (int64_t i = 0; i < n * kColumns; ++i) {
          double& p = w[begin * kColumns + i];
          p = p * (u[i] * p >= 0 ? 1 - decay : 1) - kLr * gain * u[i];
        }
        begin += n;
      }
      ExpectClose(muon.parameters()[0]->value(), w, dtype == DType::kF64 ? 1e-10 : 1e-5,
                  StrCat(dtype, " step ", step));
    }
  }
}

// Rows of a matrix that are a segment are updated as a parameter that consists of them.
TEST(MuonTest, SegmentsAreMatricesOfTheirOwn) {
  const std::vector<int64_t> rows = {8, 12, 4};
  for (const MuonScale scale : {MuonScale::kSpectral, MuonScale::kMatchAdamW}) {
    for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) {
      const Tensor initial = Noise({24, 10}, 1, 1, dtype);
      MuonOptions options{.scale = scale, .decay = {.cautious = true, .steps = 4}};
      Muon apart(
          [&] {
            Parameters parts;
            int64_t begin = 0;
            for (const int64_t n : rows) {
              parts.push_back(MakeParameter(StrCat("part", begin),
                                            initial.Slice(0, begin, begin + n).Clone(), true));
              begin += n;
            }
            return parts;
          }(),
          options);
      options.segments = [&](const Parameter&) { return rows; };
      Muon fused(Parameters{MakeParameter("w", initial.Clone(), true)}, options);
      for (int64_t step = 0; step < 6; ++step) {
        const Tensor grad = Noise({24, 10}, 10 + static_cast<uint64_t>(step), 1, dtype);
        for (Muon* muon : {&fused, &apart}) {
          StepState state(kCpu, 1);
          const auto training = muon->BeginStep(state, step, 0.02);
          int64_t begin = 0;
          for (const auto& p : muon->parameters()) {
            const int64_t n = p->logical_shape()[0];
            p->leaf().SetGrad(grad.Slice(0, begin, begin + n).Clone());
            begin += n;
          }
          muon->Step(state);
          muon->ZeroGrad();
        }
      }
      int64_t begin = 0;
      for (const auto& p : apart.parameters()) {
        const int64_t n = p->logical_shape()[0];
        const Tensor segment = fused.parameters()[0]->value().Detach().Slice(0, begin, begin + n);
        EXPECT_EQ(Bits(segment.Clone()), Bits(p->value())) << p->name() << " " << dtype;
        begin += n;
      }
    }
  }
  ExpectError<ArgumentError>(
      [&] { Muon muon(Model(), {.segments = [&](const Parameter&) { return rows; }}); },
      "Muon: the segments of 'w' have 24 rows together, but it is [7, 11]");
}

TEST(MuonTest, ThePredicateChoosesTheMatrices) {
  const auto not_w = [](const Parameter& p) { return p.value().ndim() == 2 && p.name() != "w"; };
  const NamedTensors state = Muon(Model(), {.matrix = not_w}).NamedState();
  EXPECT_EQ(state[0].first, "large.momentum_buffer");
  EXPECT_EQ(state[1].first, "tall.momentum_buffer");
  EXPECT_EQ(state[2].first, "w.exp_avg");
  ExpectError<ArgumentError>(
      [] { Muon m(Model(), {.matrix = [](const Parameter&) { return true; }}); },
      "Muon: the parameter 'b' was chosen as a matrix, but is f32[13]");
}

TEST(OptimizersTest, OptionsOutOfRange) {
  const auto expect = [](const auto& make, const std::string& message) {
    ExpectError<ArgumentError>(make, message);
  };
  expect([] { Sgd(Model(), {.momentum = 1}); }, "Sgd: momentum must be in [0, 1), got 1");
  expect([] { Sgd(Model(), {.nesterov = true}); }, "Sgd: nesterov needs momentum");
  expect([] { Sgd(Model(), {.weight_decay = -1}); },
         "Sgd: weight_decay must be finite and at least 0, got -1");
  expect([] { Lion(Model(), {.beta1 = std::nan("")}); }, "Lion: beta1 must be in [0, 1)");
  expect([] { Lion(Model(), {.beta2 = 1}); }, "Lion: beta2 must be in [0, 1), got 1");
  expect([] { Lion(Model(), {.weight_decay = HUGE_VAL}); }, "Lion: weight_decay must be finite");
  expect([] { Muon(Model(), {.momentum = -0.5}); }, "Muon: momentum must be in [0, 1), got -0.5");
  expect([] { Muon(Model(), {.steps = 0}); }, "Muon: steps must be in [1, 100), got 0");
  expect([] { Muon(Model(), {.eps = -1}); }, "AdamW: eps must be finite and at least 0, got -1");
}

}  // namespace
}  // namespace lockstep::optim
