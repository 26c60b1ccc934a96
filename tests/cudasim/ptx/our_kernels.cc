#include "tests/cudasim/ptx/our_kernels.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <stdexcept>

#include "cudasim/float_formats.h"

namespace cudasim::ptx {
namespace {

// Relative and absolute, as kernels/op_case has them.
constexpr double kFloatTolerance = 1e-5, kBfloatTolerance = 1.6e-2;

double Error(double got, double want, double tolerance) {
  if (!(got - got == 0)) return 1e30;
  return std::abs(got - want) / (tolerance * (1 + std::abs(want)));
}

// Parameters as the kernel's structures lay them out.
class Parameters {
 public:
  template <typename T>
  Parameters& Add(T value) {
    bytes_.resize((bytes_.size() + sizeof(T) - 1) / sizeof(T) * sizeof(T));
    const size_t at = bytes_.size();
    bytes_.resize(at + sizeof(T));
    std::memcpy(bytes_.data() + at, &value, sizeof(T));
    return *this;
  }
  std::vector<std::byte> Take(const Program& program) {
    if (bytes_.size() > program.parameter_bytes) throw std::logic_error("too many parameters");
    bytes_.resize(program.parameter_bytes);
    return std::move(bytes_);
  }

 private:
  std::vector<std::byte> bytes_;
};

KernelRun Start(const std::string& name, const std::string& file, const std::string& kernel,
                uint32_t blocks, uint32_t threads) {
  std::ifstream stream("tests/cudasim/ptx/testdata/" + file + ".ptx");
  if (!stream) throw std::runtime_error("cannot read " + file);
  KernelRun run;
  run.name = name;
  run.image = std::make_unique<Image>(std::string(std::istreambuf_iterator<char>(stream), {}));
  run.launch.program = run.image->FindKernel(kernel);
  if (run.launch.program == nullptr) throw std::runtime_error("no kernel " + kernel);
  run.launch.grid = {blocks};
  run.launch.block = {threads};
  return run;
}

// f32, or bf16 as its bits.
template <typename T>
struct Format {
  static T From(float x) { return x; }
  static double To(T x) { return x; }
  static constexpr double kTolerance = kFloatTolerance;
};
template <>
struct Format<uint16_t> {
  static uint16_t From(float x) { return FloatToBf16(x); }
  static double To(uint16_t x) { return Bf16ToFloat(x); }
  static constexpr double kTolerance = kBfloatTolerance;
};

template <typename T>
std::shared_ptr<std::vector<T>> Numbers(size_t count, float scale, int seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  auto numbers = std::make_shared<std::vector<T>>(count);
  for (T& x : *numbers) x = Format<T>::From(normal(random));
  return numbers;
}

template <typename T>
KernelRun LayerNorm(const std::string& name, const std::string& file) {
  constexpr int64_t kRows = 1024, kC = 768;
  KernelRun run = Start(name, file, "layer_norm", kRows, 128);
  const auto x = Numbers<T>(kRows * kC, 1, 1), w = Numbers<T>(kC, 1, 2), b = Numbers<T>(kC, 1, 3);
  const auto y = Numbers<T>(kRows * kC, 0, 4);
  const auto mean = Numbers<float>(kRows, 0, 5), rstd = Numbers<float>(kRows, 0, 6);
  run.launch.parameters = Parameters()
                              .Add(kRows)
                              .Add(kC)
                              .Add(x->data())
                              .Add(w->data())
                              .Add(b->data())
                              .Add(1e-5f)
                              .Add(y->data())
                              .Add(mean->data())
                              .Add(rstd->data())
                              .Take(*run.launch.program);
  run.others = {mean, rstd};
  run.error = [=] {
    using F = Format<T>;
    double worst = 0;
    for (int64_t r = 0; r < kRows; ++r) {
      double sum = 0, squares = 0;
      for (int64_t j = 0; j < kC; ++j) sum += F::To((*x)[r * kC + j]);
      const double center = sum / kC;
      for (int64_t j = 0; j < kC; ++j) squares += std::pow(F::To((*x)[r * kC + j]) - center, 2);
      const double scale = 1 / std::sqrt(squares / kC + 1e-5);
      for (int64_t j = 0; j < kC; ++j) {
        const double want =
            (F::To((*x)[r * kC + j]) - center) * scale * F::To((*w)[j]) + F::To((*b)[j]);
        worst = std::max(worst, Error(F::To((*y)[r * kC + j]), want, F::kTolerance));
      }
    }
    return worst;
  };
  return run;
}

KernelRun Softmax(const std::string& name, const std::string& file, int64_t columns) {
  constexpr int64_t kRows = 1024;
  KernelRun run = Start(name, file, "softmax", kRows, 128);
  const auto x = Numbers<float>(kRows * columns, 3, 1), y = Numbers<float>(kRows * columns, 0, 2);
  run.launch.parameters =
      Parameters().Add(x->data()).Add(columns).Add(y->data()).Take(*run.launch.program);
  run.error = [=] {
    double worst = 0;
    for (int64_t r = 0; r < kRows; ++r) {
      const float* const row = x->data() + r * columns;
      const double most = *std::max_element(row, row + columns);
      double sum = 0;
      for (int64_t j = 0; j < columns; ++j) sum += std::exp(row[j] - most);
      for (int64_t j = 0; j < columns; ++j) {
        worst = std::max(
            worst, Error((*y)[r * columns + j], std::exp(row[j] - most) / sum, kFloatTolerance));
      }
    }
    return worst;
  };
  return run;
}

KernelRun Gelu() {
  constexpr int64_t kCount = 1 << 20;
  KernelRun run = Start("gelu f32 [1M]", "gelu", "gelu", kCount / 4 / 256, 256);
  const auto x = Numbers<float>(kCount, 2, 1), y = Numbers<float>(kCount, 0, 2);
  run.launch.parameters = Parameters()
                              .Add(kCount)
                              .Add(uint8_t{1})
                              .Add(uint8_t{0})
                              .Add(y->data())
                              .Add(x->data())
                              .Take(*run.launch.program);
  run.error = [=] {
    double worst = 0;
    for (int64_t j = 0; j < kCount; ++j) {
      const double v = (*x)[j];
      worst = std::max(worst,
                       Error((*y)[j], 0.5 * v * std::erfc(-v * std::sqrt(0.5)), kFloatTolerance));
    }
    return worst;
  };
  return run;
}

KernelRun FlashForward() {
  constexpr int64_t kS = 512, kH = 4, kD = 64;
  KernelRun run = Start("flash forward bf16 [1,512,4,64]", "flash_forward", "flash_forward",
                        kH * (kS / 128), 128);
  const auto q = Numbers<uint16_t>(kS * kH * kD, 1, 1), k = Numbers<uint16_t>(kS * kH * kD, 1, 2);
  const auto v = Numbers<uint16_t>(kS * kH * kD, 1, 3), y = Numbers<uint16_t>(kS * kH * kD, 0, 4);
  const auto log_sum = Numbers<float>(kH * kS, 0, 5);
  const float scale = 0.125f;
  Parameters parameters;
  for (const auto& each : {q, k, v, y}) {
    parameters.Add(each->data()).Add(kS * kH * kD).Add(kH * kD).Add(kD);
  }
  parameters.Add(log_sum->data()).Add(int64_t{1}).Add(kH).Add(int64_t{1});
  parameters.Add(static_cast<int>(kS))
      .Add(static_cast<int>(kS))
      .Add(static_cast<int>(kD))
      .Add(scale);
  parameters.Add(0.0f).Add(0.0f).Add(0.0f).Add(scale).Add(INT_MAX);
  parameters.Add(static_cast<void*>(nullptr)).Add(kS);
  parameters.Add(static_cast<void*>(nullptr))
      .Add(uint64_t{0})
      .Add(int64_t{0})
      .Add(uint32_t{0})
      .Add(1.0f);
  run.launch.parameters = parameters.Take(*run.launch.program);
  run.launch.dynamic_shared = 2 * (128 + 2 * 64) * 72;
  run.others = {log_sum};
  run.error = [=] {
    const auto at = [&](const auto& x, int64_t row, int64_t head, int64_t d) {
      return static_cast<double>(Bf16ToFloat((*x)[(row * kH + head) * kD + d]));
    };
    double worst = 0;
    for (int64_t head = 0; head < kH; ++head) {
      for (int64_t i = 0; i < kS; i += 5) {
        std::vector<double> scores(i + 1);
        double most = -1e30, sum = 0;
        for (int64_t j = 0; j <= i; ++j) {
          for (int64_t d = 0; d < kD; ++d) scores[j] += at(q, i, head, d) * at(k, j, head, d);
          scores[j] *= scale;
          most = std::max(most, scores[j]);
        }
        for (double& s : scores) sum += s = std::exp(s - most);
        for (int64_t d = 0; d < kD; ++d) {
          double want = 0;
          for (int64_t j = 0; j <= i; ++j) want += scores[j] * at(v, j, head, d) / sum;
          worst = std::max(worst, Error(at(y, i, head, d), want, kBfloatTolerance));
        }
      }
    }
    return worst;
  };
  return run;
}

}  // namespace

std::vector<KernelRun> OurKernels() {
  std::vector<KernelRun> runs;
  runs.push_back(LayerNorm<float>("layer_norm f32 [1024,768]", "layer_norm"));
  runs.push_back(LayerNorm<uint16_t>("layer_norm bf16 [1024,768]", "layer_norm_bf16"));
  runs.push_back(Softmax("softmax f32 [1024,1024]", "softmax", 1024));
  runs.push_back(Softmax("softmax f32 [1024,1001]", "softmax_unaligned", 1001));
  runs.push_back(FlashForward());
  runs.push_back(Gelu());
  return runs;
}

}  // namespace cudasim::ptx
