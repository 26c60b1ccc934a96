// Averages of the weights: what they are, that they change nothing else, and what takes them.
#include <algorithm>

#include "optim/adamw.h"
#include "optim/clip.h"
#include "optim/lion.h"
#include "optim/muon.h"
#include "optim/sgd.h"
#include "tests/optim/optim_test_util.h"

namespace lockstep::optim {
namespace {

using Parameters = std::vector<std::shared_ptr<Parameter>>;

constexpr double kDecay = 0.6;

Parameters Model(DType dtype = DType::kF32) {
  return {MakeParameter("w", Noise({7, 11}, 1, 1, dtype), true),
          MakeParameter("b", Noise({13}, 2, 1, dtype), false)};
}

std::unique_ptr<AdamW> MakeAdamW(DType dtype, double ema, bool masters = true) {
  return std::make_unique<AdamW>(Model(dtype), AdamWOptions{.master_weights = masters, .ema = ema});
}

// `poison`: a gradient, so that the update is skipped.
void Train(Optimizer& optimizer, int64_t begin, int64_t end, double poison = 0) {
  StepState state(kCpu, 1);
  for (int64_t step = begin; step < end; ++step) {
    const auto training = optimizer.BeginStep(state, step, 0.05);
    for (const auto& p : optimizer.parameters()) {
      const Tensor grad = Noise(p->value().shape(), HashName(p->name()) + step);
      p->leaf().SetGrad(grad.To(p->value().dtype()));
    }
    if (poison != 0) optimizer.parameters()[0]->grad().Fill(poison);
    ClipGradNorm(optimizer.parameters(), 0.5, state);
    optimizer.Step(state);
    optimizer.ZeroGrad();
  }
}

using All = std::map<std::string, std::vector<uint8_t>>;

All StateOf(const Optimizer& optimizer, bool averages = true) {
  All all;
  for (const auto& p : optimizer.parameters()) all[p->name()] = Bits(p->value());
  for (const auto& [name, t] : optimizer.NamedState()) {
    if (averages || !name.ends_with(".ema")) all[name] = Bits(t);
  }
  return all;
}

NamedTensors Saved(const Optimizer& optimizer) {
  NamedTensors saved;
  for (const auto& [name, t] : optimizer.NamedState()) saved.emplace_back(name, t.Clone());
  return saved;
}

std::vector<double> Values(const Tensor& t) {
  return t.Detach().To(DType::kF64).ToVector<double>();
}

// By each optimizer, of each kind of original; the weights and moments are those without averages.
TEST(Averages, AreThoseOfTheOriginals) {
  const auto check = [](const auto& make) {
    for (const auto& [dtype, masters] : {std::pair(DType::kF64, true),
                                         {DType::kF32, true},
                                         {DType::kBF16, true},
                                         {DType::kBF16, false},
                                         {DType::kF16, true}}) {
      const std::unique_ptr<Optimizer> plain = make(Model(dtype), masters, 0.0),
                                       averaged = make(Model(dtype), masters, kDecay);
      SCOPED_TRACE(StrCat(averaged->name(), " ", dtype, masters ? " with originals" : ""));
      std::vector<std::vector<double>> want;
      for (const Tensor& original : averaged->Originals()) want.push_back(Values(original));
      for (int64_t step = 0; step < 8; ++step) {
        for (Optimizer* optimizer : {plain.get(), averaged.get()}) {
          StepState state(kCpu, 1);
          if (dtype == DType::kF16) state.EnableLossScaling({.init = 1});
          const auto training = optimizer->BeginStep(state, step, 0.05);
          for (const auto& p : optimizer->parameters()) {
            const Tensor grad = Noise(p->value().shape(), HashName(p->name()) + step);
            p->leaf().SetGrad(grad.To(dtype));
          }
          ClipGradNorm(optimizer->parameters(), 0.5, state);
          optimizer->Step(state);
          optimizer->ZeroGrad();
        }
        const auto n = static_cast<double>(step + 1), d = std::min(kDecay, (1 + n) / (10 + n));
        const std::vector<Tensor> originals = averaged->Originals();
        for (size_t i = 0; i < originals.size(); ++i) {
          const std::vector<double> w = Values(originals[i]);
          for (size_t k = 0; k < w.size(); ++k) want[i][k] = d * want[i][k] + (1 - d) * w[k];
        }
      }
      EXPECT_EQ(StateOf(*averaged, false), StateOf(*plain));
      for (const auto& [name, t] : averaged->NamedState()) {
        if (!name.ends_with(".ema")) continue;
        EXPECT_EQ(t.dtype(), dtype == DType::kF64 ? dtype : DType::kF32);
        ExpectClose(t, want[name == "w.ema" ? 0 : 1], dtype == DType::kF64 ? 1e-14 : 1e-6, name);
      }
    }
  };
  check([](Parameters p, bool masters, double ema) {
    return std::make_unique<AdamW>(p, AdamWOptions{.master_weights = masters, .ema = ema});
  });
  check([](Parameters p, bool masters, double ema) {
    return std::make_unique<Sgd>(p, SgdOptions{.master_weights = masters, .ema = ema});
  });
  check([](Parameters p, bool masters, double ema) {
    return std::make_unique<Lion>(p, LionOptions{.master_weights = masters, .ema = ema});
  });
  check([](Parameters p, bool masters, double ema) {
    MuonOptions options{.master_weights = masters, .ema = ema};
    options.segments = [](const Parameter&) { return std::vector<int64_t>{3, 4}; };
    return std::make_unique<Muon>(p, options);
  });
}

TEST(Averages, StayWhereAnUpdateIsSkipped) {
  const auto optimizer = MakeAdamW(DType::kF32, kDecay);
  Train(*optimizer, 0, 3);
  const All before = StateOf(*optimizer);
  Train(*optimizer, 3, 4, /*poison=*/INFINITY);
  EXPECT_EQ(StateOf(*optimizer), before);
}

TEST(Averages, TakeTheWeightsPlaceForAWhile) {
  for (const auto& [dtype, masters] :
       {std::pair(DType::kF32, true), {DType::kBF16, true}, {DType::kBF16, false}}) {
    const auto optimizer = MakeAdamW(dtype, kDecay, masters);
    Train(*optimizer, 0, 3);
    const All before = StateOf(*optimizer);
    std::map<std::string, Tensor> averages;
    for (const auto& [name, t] : optimizer->NamedState()) averages[name] = t.Clone();
    const auto look = [&] {
      for (const auto& p : optimizer->parameters()) {
        EXPECT_EQ(Bits(p->value()), Bits(averages.at(p->name() + ".ema").To(dtype)));
      }
    };
    optimizer->WithAverages(look);
    EXPECT_EQ(StateOf(*optimizer), before);
    ExpectError<InputError>([&] { optimizer->WithAverages([] { throw InputError("within"); }); },
                            "within");
    EXPECT_EQ(StateOf(*optimizer), before);
    Train(*optimizer, 3, 5);  // its originals are not taken for those of other weights
  }
  ExpectError<ArgumentError>([] { MakeAdamW(DType::kF32, 0)->WithAverages([] {}); },
                             "AdamW keeps no averages of the weights");
  ExpectError<ArgumentError>([] { MakeAdamW(DType::kF32, 1); }, "ema must be in [0, 1), got 1");
}

TEST(Averages, AreSavedAndLoaded) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const auto straight = MakeAdamW(dtype, kDecay), first = MakeAdamW(dtype, kDecay),
               second = MakeAdamW(dtype, kDecay);
    Train(*straight, 0, 6);
    Train(*first, 0, 3);
    for (size_t i = 0; i < 2; ++i) {
      second->parameters()[i]->value().Detach().CopyFrom(first->parameters()[i]->value().Detach());
    }
    second->LoadState(Saved(*first));
    Train(*second, 3, 6);
    EXPECT_EQ(StateOf(*second), StateOf(*straight));
  }
}

// A run may begin to keep them, and stop.
TEST(Averages, BeginWithTheWeightsWhereNoneWereSaved) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const auto without = MakeAdamW(dtype, 0), with = MakeAdamW(dtype, kDecay);
    Train(*without, 0, 3);
    for (size_t i = 0; i < 2; ++i) {
      with->parameters()[i]->value().Detach().CopyFrom(without->parameters()[i]->value().Detach());
    }
    with->LoadState(Saved(*without));
    for (const auto& [name, t] : with->NamedState()) {
      if (!name.ends_with(".ema")) continue;
      EXPECT_EQ(Bits(t), Bits(with->Originals()[name == "w.ema" ? 0 : 1])) << name;
    }
    without->LoadState(Saved(*with));
    NamedTensors some = Saved(*with);
    std::erase_if(some, [](const auto& named) { return named.first == "b.ema"; });
    ExpectError<InputError>([&] { with->LoadState(some); }, "the tensor 'b.ema' is missing");
  }
}

}  // namespace
}  // namespace lockstep::optim
