// Optimizer state in host memory: the bits of state on the GPU, in the memory of two buffers.
#include "optim/host_updates.h"

#include <functional>

#include "core/allocator.h"
#include "optim/adamw.h"
#include "optim/clip.h"
#include "optim/lion.h"
#include "optim/muon.h"
#include "optim/sgd.h"
#include "tests/gpu_test.h"
#include "tests/optim/optim_test_util.h"
#include "tests/process_state.h"
#include "tests/sanitized.h"

namespace lockstep::optim {
namespace {

using Parameters = std::vector<std::shared_ptr<Parameter>>;
using test::kGpu;

// Smaller than most parameters, so that they are cut, and of no round size.
constexpr int64_t kBuffer = 40'000;

struct Kind {
  const char* name;
  std::function<std::unique_ptr<Optimizer>(Parameters, DType state, bool masters, StateOffload)>
      make;
};

template <class O, class Options>
Kind Of(const char* name, Options options) {
  return {name, [options](Parameters p, DType state, bool masters, StateOffload offload) {
            Options o = options;
            o.state_dtype = state;
            o.master_weights = masters;
            o.offload = offload;
            // Two groups, so that there are several calls.
            ParameterGroup last{.parameters = {p.back()}, .lr_factor = 0.5};
            p.pop_back();
            return std::make_unique<O>(std::vector{ParameterGroup{.parameters = p}, last}, o);
          }};
}

const std::vector<Kind>& Kinds() {
  static const std::vector<Kind> kinds = {
      Of<AdamW>("adamw", AdamWOptions{.weight_decay = 0.1}),
      Of<Lion>("lion", LionOptions{.weight_decay = 0.1, .ema = 0.9}),
      Of<Sgd>("sgd", SgdOptions{.weight_decay = 0.1}),
      Of<Sgd>("sgd with averages", SgdOptions{.weight_decay = 0.1, .ema = 0.9}),
      Of<Sgd>("momentum", SgdOptions{.momentum = 0.9, .weight_decay = 0.1}),
      Of<Muon>("muon", MuonOptions{.weight_decay = 0.1, .ema = 0.9})};
  return kinds;
}

Parameters Model(DType dtype, bool weights_on_host) {
  Parameters all;
  const std::vector<Shape> shapes = {{40, 100}, {7}, {100, 200}, {0}, {1}, {3000}};
  for (size_t i = 0; i < shapes.size(); ++i) {
    all.push_back(MakeParameter(StrCat("p", i), Noise(shapes[i], i, 1, dtype), i % 2 == 0));
    if (weights_on_host) all.back()->KeepOnHost();
    all.back()->SetValue(all.back()->value().Detach().To(kGpu));
  }
  return all;
}

void SetGradients(const Parameters& parameters, int64_t step) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    // One gets none now and then.
    if (step % 3 == 1 && i == 2) continue;
    const Shape& shape = parameters[i]->part().shape();
    Tensor grad = Noise(shape, 100 * i + static_cast<uint64_t>(step), 1, DType::kF32);
    parameters[i]->leaf().SetGrad(grad.To(kGpu));
  }
}

void OneStep(Optimizer& optimizer, StepState& state, int64_t step, double poison = 0) {
  const auto training = optimizer.BeginStep(state, step, 1e-2 / static_cast<double>(step + 1));
  SetGradients(optimizer.parameters(), step);
  if (poison != 0) optimizer.parameters()[0]->grad().Fill(poison);
  ClipGradNorm(optimizer.parameters(), 0.5, state);
  optimizer.Step(state);
  optimizer.ZeroGrad();
}

using AllBits = std::map<std::string, std::vector<uint8_t>>;

AllBits BitsOf(const Optimizer& optimizer) {
  AllBits all;
  for (const auto& p : optimizer.parameters()) all[p->name()] = Bits(p->value().To(kCpu));
  for (const auto& [name, t] : optimizer.NamedState()) all[name] = Bits(t.To(kCpu));
  return all;
}

struct Variant {
  DType dtype, state;
  bool masters;
};

class HostUpdatesTest : public test::GpuTest {
 protected:
  const std::vector<Variant> variants_ = {{DType::kF32, DType::kF32, true},
                                          {DType::kBF16, DType::kF32, true},
                                          {DType::kF16, DType::kBF16, true},
                                          {DType::kBF16, DType::kBF16, false}};
};

TEST_F(HostUpdatesTest, HaveTheSameBits) {
  for (const Kind& kind : Kinds()) {
    for (const Variant& v : variants_) {
      const auto run = [&](bool weights, const StateOffload& offload) {
        const auto optimizer = kind.make(Model(v.dtype, weights), v.state, v.masters, offload);
        StepState state(kGpu, 9);
        if (v.dtype == DType::kF16) state.EnableLossScaling({.init = 1});
        for (int64_t step = 0; step < 4; ++step) OneStep(*optimizer, state, step);
        return BitsOf(*optimizer);
      };
      const AllBits plain = run(false, {});
      const StateOffload small{.to_host = true, .buffer_bytes = kBuffer};
      EXPECT_TRUE(run(false, small) == plain) << kind.name << " " << v.dtype;
      EXPECT_TRUE(run(false, {.to_host = true}) == plain) << kind.name << " " << v.dtype;
      EXPECT_TRUE(run(true, small) == plain) << kind.name << " " << v.dtype;
      EXPECT_TRUE(run(true, {.buffer_bytes = 1}) == plain) << kind.name << " " << v.dtype;
    }
  }
}

// An update that is skipped leaves what is on the host as it is.
TEST_F(HostUpdatesTest, SkipInfiniteGradients) {
  for (const Kind& kind : Kinds()) {
    const auto optimizer =
        kind.make(Model(DType::kF16, true), DType::kF32, true, {.to_host = true});
    StepState state(kGpu, 9);
    state.EnableLossScaling({.init = 4});
    OneStep(*optimizer, state, 0);
    const AllBits before = BitsOf(*optimizer);
    OneStep(*optimizer, state, 1, INFINITY);
    EXPECT_TRUE(state.Read().found_inf);
    EXPECT_TRUE(BitsOf(*optimizer) == before) << kind.name;
    OneStep(*optimizer, state, 2);
    EXPECT_FALSE(BitsOf(*optimizer) == before) << kind.name;
  }
}

// A checkpoint has the same names and tensors with state on the host or without, and either
// continues from it.
TEST_F(HostUpdatesTest, ResumeWithAndWithout) {
  for (const Kind& kind : Kinds()) {
    const auto make = [&](bool host) {
      return kind.make(Model(DType::kBF16, host), DType::kF32, true,
                       {.to_host = host, .buffer_bytes = kBuffer});
    };
    const auto straight = make(false);
    StepState state(kGpu, 9);
    for (int64_t step = 0; step < 4; ++step) OneStep(*straight, state, step);
    for (const bool first_on_host : {false, true}) {
      const auto first = make(first_on_host), second = make(!first_on_host);
      for (int64_t step = 0; step < 2; ++step) OneStep(*first, state, step);
      for (size_t i = 0; i < first->parameters().size(); ++i) {
        second->parameters()[i]->value().Detach().CopyFrom(
            first->parameters()[i]->value().Detach());
      }
      NamedTensors saved;
      for (const auto& [name, t] : first->NamedState()) saved.emplace_back(name, t.Clone());
      second->LoadState(saved);
      for (int64_t step = 2; step < 4; ++step) OneStep(*second, state, step);
      EXPECT_TRUE(BitsOf(*second) == BitsOf(*straight)) << kind.name << first_on_host;
    }
  }
}

// Beyond weights and gradients, a device has two buffers during a step and nothing between steps.
TEST_F(HostUpdatesTest, TakeTwoBuffers) {
  Allocator& allocator = GetAllocator(kGpu);
  const auto run = [&](const StateOffload& offload) {
    const auto optimizer =
        std::make_unique<AdamW>(Model(DType::kF32, false), AdamWOptions{.offload = offload});
    StepState state(kGpu, 9);
    OneStep(*optimizer, state, 0);
    const int64_t between = allocator.stats().live_bytes;
    const auto training = optimizer->BeginStep(state, 1, 1e-2);
    SetGradients(optimizer->parameters(), 3);
    ClipGradNorm(optimizer->parameters(), 0.5, state);
    allocator.ResetPeak();
    optimizer->Step(state);
    return std::pair(between, allocator.stats().peak_bytes);
  };
  int64_t numel = 0;
  for (const auto& p : Model(DType::kF32, false)) numel += p->value().numel();
  const auto plain = run({}), offloaded = run({.to_host = true, .buffer_bytes = kBuffer});
  EXPECT_EQ(plain.first - offloaded.first, 2 * 4 * numel);
  const int64_t saved = plain.second - offloaded.second;
  EXPECT_GE(saved, 2 * 4 * numel - 2 * kBuffer);
  // A buffer is full but for what its alignment leaves over.
  EXPECT_LE(saved, 2 * 4 * numel - 2 * (kBuffer - 2 * 4 * 1024));
}

// Also that of the host, where an event that is kept takes some hundred bytes on simulated GPUs: a
// step has about a hundred.
TEST_F(HostUpdatesTest, KeepMemoryFlat) {
  const auto optimizer =
      std::make_unique<AdamW>(Model(DType::kBF16, true),
                              AdamWOptions{.offload = {.to_host = true, .buffer_bytes = kBuffer}});
  StepState state(kGpu, 9);
  const auto run = [&](int64_t from, int64_t to) {
    for (int64_t step = from; step < to; ++step) {
      OneStep(*optimizer, state, 3 * step);
      // A host that runs ahead fills the queues of streams, as long as they may be.
      Synchronize(CurrentStream(kGpu));
    }
    return GetAllocator(kGpu).stats();
  };
  const AllocatorStats before = run(0, 50);
  const int64_t on_host = test::ResidentBytes();
  const AllocatorStats after = run(50, 400);
  EXPECT_EQ(after.live_bytes, before.live_bytes);
  EXPECT_EQ(after.reserved_bytes, before.reserved_bytes);
  if (test::kSanitized) return;  // the allocator has no cache there
  EXPECT_LE(test::ResidentBytes(), on_host + (2 << 20));
  EXPECT_EQ(after.system_allocations, before.system_allocations);
}

// However large they may be, they take less than they save.
TEST_F(HostUpdatesTest, TakeBuffersThatFitSmallModels) {
  Allocator& allocator = GetAllocator(kGpu);
  const Parameters model = {MakeParameter("w", Noise({1 << 20}, 1), true)};
  model[0]->SetValue(model[0]->value().Detach().To(kGpu));
  AdamW adamw(model, {.offload = {.to_host = true}});
  StepState state(kGpu, 9);
  const auto training = adamw.BeginStep(state, 0, 1e-2);
  model[0]->leaf().SetGrad(Noise({1 << 20}, 2).To(kGpu));
  const int64_t before = allocator.stats().live_bytes;
  allocator.ResetPeak();
  adamw.Step(state);
  EXPECT_EQ(allocator.stats().peak_bytes - before, 2 * (8 << 20) / 8);
}

// Which a plan of terabytes would otherwise take minutes for.
TEST(HostUpdatesPlan, PiecesThatAreAlikeArePlannedOnce) {
  // Elements of each piece.
  const auto in_pieces = [](const std::vector<int64_t>& numels) {
    std::vector<int64_t> pieces;
    UpdateCall call{.update =
                        [&](std::span<const UpdateTensors> tensors) {
                          pieces.push_back(0);
                          for (const UpdateTensors& t : tensors) pieces.back() += t.value.numel();
                        },
                    .states_on_host = true};
    for (const int64_t numel : numels) {
      const auto tensor = [&] { return Tensor::Empty({numel}, DType::kF32, kMeta); };
      call.tensors.push_back({.value = tensor(), .grad = tensor(), .states = {tensor()}});
    }
    HostUpdates(kMeta, kBuffer).Run({&call, 1});
    return pieces;
  };
  using Pieces = std::vector<int64_t>;
  const int64_t whole = 9 * 1024;
  EXPECT_EQ(in_pieces({2 * whole}), (Pieces{whole, whole}));
  EXPECT_EQ(in_pieces({1'000'000 * whole + 3}), (Pieces{whole, whole + 3}));
  // The first buffer has room for six thousand more.
  EXPECT_EQ(in_pieces({3000, 1'000'000 * whole}), (Pieces{3000 + 6144, whole, whole, 3072}));
}

TEST_F(HostUpdatesTest, StateIsOnTheHost) {
  AdamW adamw(Model(DType::kBF16, false), {.offload = {.to_host = true}});
  for (const auto& [name, tensor] : adamw.NamedState()) EXPECT_EQ(tensor.device(), kCpu) << name;
}

TEST(StateOffload, ChangesNothingOnTheCpu) {
  const auto run = [](bool to_host) {
    AdamW adamw({MakeParameter("w", Noise({5, 7}, 1), true)}, {.offload = {.to_host = to_host}});
    StepState state(kCpu, 1);
    const auto training = adamw.BeginStep(state, 0, 1e-2);
    adamw.parameters()[0]->leaf().SetGrad(Noise({5, 7}, 2));
    adamw.Step(state);
    return BitsOf(adamw);
  };
  EXPECT_EQ(run(true), run(false));
}

TEST(StateOffload, NeedsBuffers) {
  ExpectError<ArgumentError>(
      [] {
        AdamW({MakeParameter("w", Noise({5}, 1), true)},
              {.offload = {.to_host = true, .buffer_bytes = 0}});
      },
      "must have at least a byte, got 0");
}

}  // namespace
}  // namespace lockstep::optim
