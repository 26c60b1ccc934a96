// Multi-tensor kernels with tables of more tensors than one launch takes, compared with the CPU.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/philox.h"
#include "kernels/adamw/adamw.h"
#include "kernels/global_norm/global_norm.h"
#include "kernels/lion/lion.h"
#include "kernels/muon/muon.h"
#include "kernels/sgd/sgd.h"
#include "tests/gpu_test.h"

namespace lockstep {
namespace {

using test::kGpu;

class MultiTensor : public test::GpuTest {};

std::vector<float> Values(int64_t n, int seed) {
  std::vector<float> values(static_cast<size_t>(n));
  const Philox random(static_cast<uint64_t>(seed));
  for (size_t i = 0; i < values.size(); ++i) values[i] = ToUniform(random.At(7, i)) - 0.5f;
  return values;
}

Tensor MakeTensor(int64_t n, int seed, DType dtype, Device device) {
  return Tensor::FromVector(Values(n, seed), {n}).To(dtype).To(device);
}

std::vector<std::byte> Bytes(const Tensor& x) {
  const Tensor host = x.Detach().To(kCpu);
  const auto* begin = static_cast<const std::byte*>(host.raw_data());
  return {begin, begin + host.bytes()};
}

// More tensors than a launch's table holds, some larger than a block's share, of three kinds.
constexpr int kTensors = 190;
int64_t SizeOfTensor(int i) { return i == 50 ? 20003 : i * 37 % 101; }

struct Parameter {
  Tensor value, grad, average, square, master;
};

std::vector<Parameter> MakeParameters(Device device, DType state = DType::kF32) {
  std::vector<Parameter> all;
  for (int i = 0; i < kTensors; ++i) {
    const int64_t n = SizeOfTensor(i);
    const DType dtype = i % 3 == 0 ? DType::kF32 : DType::kBF16;
    const DType grad = i % 2 == 0 ? DType::kF32 : dtype;
    Parameter p{MakeTensor(n, 4 * i, dtype, device), MakeTensor(n, 4 * i + 1, grad, device),
                MakeTensor(n, 4 * i + 2, state, device), Tensor::Full({n}, 0.25, state, device),
                Tensor()};
    if (i % 3 == 1) p.master = MakeTensor(n, 4 * i + 3, DType::kF32, device);
    if (i % 6 == 1) p.value = p.value.To(DType::kF16);
    all.push_back(p);
  }
  return all;
}

// Every other one is of a group with a learning rate of its own.
std::vector<UpdateTensors> Tensors(const std::vector<Parameter>& parameters, size_t states) {
  // For what is rounded stochastically: bf16 values without a master, and bf16 states.
  constexpr ElementPlace places[] = {
      {}, {.skip = 3}, {.skip = 1, .first = 2, .run = 7, .stride = 50}};
  std::vector<UpdateTensors> all;
  for (const Parameter& p : parameters) {
    const std::vector<Tensor> both = {p.average, p.square};
    all.push_back({.value = p.value,
                   .grad = p.grad,
                   .states = {both.begin(), both.begin() + static_cast<int64_t>(states)},
                   .master = p.master,
                   .weight_decay = 0.1,
                   .lr_factor = all.size() % 2 == 0 ? 1 : 0.3,
                   .parameter = all.size(),
                   .place = places[all.size() % 3]});
  }
  return all;
}

StepState MakeState(Device device) {
  StepState state(device, 1);
  state.EnableLossScaling({.init = 4});
  state.Begin(3, 0.01, {{0.9, 0.95}, {0.9, 0.999}});
  return state;
}

void ExpectEqual(const std::vector<Parameter>& a, const std::vector<Parameter>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(Bytes(a[i].value), Bytes(b[i].value)) << "value " << i;
    EXPECT_EQ(Bytes(a[i].average), Bytes(b[i].average)) << "average " << i;
    EXPECT_EQ(Bytes(a[i].square), Bytes(b[i].square)) << "square " << i;
    if (a[i].master.defined()) {
      EXPECT_EQ(Bytes(a[i].master), Bytes(b[i].master)) << "master " << i;
    }
  }
}

// Updates the same parameters on the CPU and on the GPU; all bits are equal.
template <class F>
void ExpectSameUpdate(const F& update) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const std::vector<Parameter> cpu = MakeParameters(kCpu, dtype);
    const std::vector<Parameter> gpu = MakeParameters(kGpu, dtype);
    update(cpu, MakeState(kCpu));
    update(gpu, MakeState(kGpu));
    ExpectEqual(cpu, gpu);
  }
}

TEST_F(MultiTensor, AdamWOfManyTensorsHasTheBitsOfTheCpu) {
  ExpectSameUpdate([](const std::vector<Parameter>& p, const StepState& state) {
    ops::AdamWUpdate(Tensors(p, 2), {}, state);
  });
}

TEST_F(MultiTensor, SgdOfManyTensorsHasTheBitsOfTheCpu) {
  for (const SgdHyper hyper : {SgdHyper{}, SgdHyper{0.9, false}, SgdHyper{0.9, true}}) {
    ExpectSameUpdate([&](const std::vector<Parameter>& p, const StepState& state) {
      ops::SgdUpdate(Tensors(p, 1), hyper, state);
    });
  }
}

TEST_F(MultiTensor, LionOfManyTensorsHasTheBitsOfTheCpu) {
  ExpectSameUpdate([](const std::vector<Parameter>& p, const StepState& state) {
    ops::LionUpdate(Tensors(p, 1), {}, state);
  });
}

TEST_F(MultiTensor, AnUpdateWithFoundInfChangesNothing) {
  const std::vector<Parameter> parameters = MakeParameters(kGpu), before = MakeParameters(kGpu);
  const StepState state = MakeState(kGpu);
  const Tensor infinite =
      Tensor::FromVector<float>({1, std::numeric_limits<float>::infinity()}, {2}, kGpu);
  ops::GradNorm(std::span(&infinite, 1), 1, state);
  EXPECT_EQ(state.Read().found_inf, 1);
  ops::AdamWUpdate(Tensors(parameters, 2), {}, state);
  ops::SgdUpdate(Tensors(parameters, 1), {0.9, false}, state);
  ops::LionUpdate(Tensors(parameters, 1), {}, state);
  ExpectEqual(parameters, before);

  const auto matrix = [](int seed) { return MakeTensor(12, seed, DType::kF32, kGpu).View({3, 4}); };
  const UpdateTensors muon{.value = matrix(1),
                           .grad = matrix(2),
                           .states = {matrix(3)},
                           .master = {},
                           .weight_decay = 0.1};
  ops::MuonUpdate(std::span(&muon, 1), {}, state);
  EXPECT_EQ(Bytes(muon.value), Bytes(matrix(1)));
  EXPECT_EQ(Bytes(muon.states[0]), Bytes(matrix(3)));
}

TEST_F(MultiTensor, TheNormOfManyGradientsIsThatOfTheCpu) {
  const auto norm = [](Device device) {
    std::vector<Tensor> grads;
    for (const Parameter& p : MakeParameters(device)) grads.push_back(p.grad);
    const StepState state = MakeState(device);
    ops::GradNorm(grads, 1, state);
    return state.Read();
  };
  const StepValues cpu = norm(kCpu), gpu = norm(kGpu);
  EXPECT_EQ(gpu.found_inf, 0);
  EXPECT_NEAR(gpu.grad_norm, cpu.grad_norm, 1e-6 * cpu.grad_norm);
  EXPECT_NEAR(gpu.clip_factor, cpu.clip_factor, 1e-6 * cpu.clip_factor);
}

}  // namespace
}  // namespace lockstep
