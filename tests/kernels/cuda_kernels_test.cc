// What the op suite does not reach on a GPU: tables of more tensors than one launch takes, updates
// that must not happen, and ids that the host cannot be told of.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/autograd.h"
#include "core/cuda/device.h"
#include "core/engine.h"
#include "core/philox.h"
#include "kernels/adamw/adamw.h"
#include "kernels/cached_attention/cached_attention.h"
#include "kernels/embedding/embedding.h"
#include "kernels/global_norm/global_norm.h"
#include "kernels/lion/lion.h"
#include "kernels/muon/muon.h"
#include "kernels/sgd/sgd.h"
#include "kernels/softmax_cross_entropy/softmax_cross_entropy.h"

namespace lockstep {
namespace {

constexpr Device kGpu{DeviceType::kCuda, 0};

class CudaKernels : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda::DeviceCount() == 0) GTEST_SKIP() << "there is no GPU here";
  }
};

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

std::vector<Parameter> MakeParameters(Device device) {
  std::vector<Parameter> all;
  for (int i = 0; i < kTensors; ++i) {
    const int64_t n = SizeOfTensor(i);
    const DType dtype = i % 3 == 0 ? DType::kF32 : DType::kBF16;
    const DType grad = i % 2 == 0 ? DType::kF32 : dtype;
    Parameter p{MakeTensor(n, 4 * i, dtype, device), MakeTensor(n, 4 * i + 1, grad, device),
                MakeTensor(n, 4 * i + 2, DType::kF32, device),
                Tensor::Full({n}, 0.25, DType::kF32, device), Tensor()};
    if (i % 3 == 1) p.master = MakeTensor(n, 4 * i + 3, DType::kF32, device);
    all.push_back(p);
  }
  return all;
}

template <class Tensors>
std::vector<Tensors> As(const std::vector<Parameter>& parameters) {
  std::vector<Tensors> all;
  for (const Parameter& p : parameters) {
    Tensors t;
    t.value = p.value;
    t.grad = p.grad;
    t.master = p.master;
    t.weight_decay = 0.1;
    if constexpr (requires { t.momentum; }) t.momentum = p.average;
    if constexpr (requires { t.exp_avg; }) t.exp_avg = p.average;
    if constexpr (requires { t.exp_avg_sq; }) t.exp_avg_sq = p.square;
    all.push_back(t);
  }
  return all;
}

StepState MakeState(Device device) {
  StepState state(device, 1);
  state.Begin(3, 0.01, 0.9, 0.95, 4);
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
  const std::vector<Parameter> cpu = MakeParameters(kCpu), gpu = MakeParameters(kGpu);
  update(cpu, MakeState(kCpu));
  update(gpu, MakeState(kGpu));
  ExpectEqual(cpu, gpu);
}

TEST_F(CudaKernels, AdamWOfManyTensorsHasTheBitsOfTheCpu) {
  ExpectSameUpdate([](const std::vector<Parameter>& p, const StepState& state) {
    ops::AdamWUpdate(As<AdamWTensors>(p), {}, state);
  });
}

TEST_F(CudaKernels, SgdOfManyTensorsHasTheBitsOfTheCpu) {
  for (const SgdHyper hyper : {SgdHyper{}, SgdHyper{0.9, false}, SgdHyper{0.9, true}}) {
    ExpectSameUpdate([&](const std::vector<Parameter>& p, const StepState& state) {
      ops::SgdUpdate(As<SgdTensors>(p), hyper, state);
    });
  }
}

TEST_F(CudaKernels, LionOfManyTensorsHasTheBitsOfTheCpu) {
  ExpectSameUpdate([](const std::vector<Parameter>& p, const StepState& state) {
    ops::LionUpdate(As<LionTensors>(p), {}, state);
  });
}

TEST_F(CudaKernels, AnUpdateWithFoundInfChangesNothing) {
  const std::vector<Parameter> parameters = MakeParameters(kGpu), before = MakeParameters(kGpu);
  const StepState state = MakeState(kGpu);
  const Tensor infinite =
      Tensor::FromVector<float>({1, std::numeric_limits<float>::infinity()}, {2}, kGpu);
  ops::GradNorm(std::span(&infinite, 1), 1, state);
  EXPECT_EQ(state.Read().found_inf, 1);
  ops::AdamWUpdate(As<AdamWTensors>(parameters), {}, state);
  ops::SgdUpdate(As<SgdTensors>(parameters), {0.9, false}, state);
  ops::LionUpdate(As<LionTensors>(parameters), {}, state);
  ExpectEqual(parameters, before);

  const auto matrix = [](int seed) { return MakeTensor(12, seed, DType::kF32, kGpu).View({3, 4}); };
  const MuonTensors muon{matrix(1), matrix(2), matrix(3), Tensor(), 0.1};
  ops::MuonUpdate(std::span(&muon, 1), {}, state);
  EXPECT_EQ(Bytes(muon.value), Bytes(matrix(1)));
  EXPECT_EQ(Bytes(muon.momentum), Bytes(matrix(3)));
}

TEST_F(CudaKernels, TheNormOfManyGradientsIsThatOfTheCpu) {
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

TEST_F(CudaKernels, AnUnknownIdGivesARowOfNaNsAndHasNoGradient) {
  const Tensor ids = Tensor::FromVector<int32_t>({1, -1, 0, 3, 1}, {5}, kGpu);
  const Tensor weight = Tensor::FromVector<float>({1, 2, 3, 4, 5, 6}, {3, 2}, kGpu);
  const Tensor leaf = weight.Clone().SetRequiresGrad();
  const Tensor y = ops::Embedding(ids, leaf);
  const std::vector<float> values = y.ToVector<float>();
  const std::vector<float> want = {3, 4, NAN, NAN, 1, 2, NAN, NAN, 3, 4};
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_TRUE(values[i] == want[i] || (std::isnan(values[i]) && std::isnan(want[i]))) << i;
  }
  const Tensor root = Tensor::Full({5, 2}, 1, DType::kF32, kGpu);
  Backward(std::span(&y, 1), std::span(&root, 1));
  EXPECT_EQ(leaf.grad().ToVector<float>(), (std::vector<float>{1, 1, 2, 2, 0, 0}));
}

TEST_F(CudaKernels, AnUnknownTargetMakesTheLossNaN) {
  const Tensor logits = Tensor::Zeros({3, 4}, DType::kF32, kGpu);
  for (const int32_t unknown : {4, -2}) {
    const Tensor targets = Tensor::FromVector<int32_t>({1, unknown, -1}, {3}, kGpu);
    const std::vector<float> losses =
        ops::SoftmaxCrossEntropy(logits, targets, Reduction::kNone).ToVector<float>();
    EXPECT_FLOAT_EQ(losses[0], std::log(4.0f));
    EXPECT_TRUE(std::isnan(losses[1]));
    EXPECT_EQ(losses[2], 0);
  }
}

// Rows 0 to 1 and positions 0 to 2 are all that this cache has. Two tokens fit at positions 0
// and 1.
TEST_F(CudaKernels, APlaceOutsideOfTheCacheIsNeitherReadNorWritten) {
  const Tensor cache = MakeTensor(2 * 3 * 4, 1, DType::kF32, kGpu).View({2, 1, 3, 4});
  const Tensor x = MakeTensor(2 * 4, 2, DType::kF32, kGpu).View({1, 2, 1, 4});
  const auto index = [](int32_t value) { return Tensor::FromVector<int32_t>({value}, {1}, kGpu); };
  const auto before = Bytes(cache);
  for (const auto& [row, position] :
       std::vector<std::pair<int32_t, int32_t>>{{2, 0}, {-1, 0}, {0, 2}, {1, -1}, {7, 9}}) {
    ops::StoreInCache(x, index(row), index(position), cache);
    EXPECT_EQ(Bytes(cache), before) << row << ", " << position;
    const NoGrad no_grad;
    for (const float y :
         ops::CachedAttention(x, cache, cache, index(row), index(position)).ToVector<float>())
      EXPECT_TRUE(std::isnan(y)) << row << ", " << position;
  }
  for (const auto& [row, position] : std::vector<std::pair<int32_t, int32_t>>{{0, 0}, {1, 1}}) {
    const auto old = Bytes(cache);
    ops::StoreInCache(x, index(row), index(position), cache);
    EXPECT_NE(Bytes(cache), old) << row << ", " << position;
  }
}

}  // namespace
}  // namespace lockstep
