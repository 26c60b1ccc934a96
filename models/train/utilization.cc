#include "models/train/utilization.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>
#include <regex>
#include <sstream>
#include <vector>

#include "core/allocator.h"
#include "core/autograd/grad_mode.h"
#include "core/cuda/blaslt.h"
#include "core/cuda/device.h"
#include "core/cuda/device_info.h"
#include "core/thread_pool.h"
#include "kernels/linear/linear.h"
#include "models/options/config.h"

namespace lockstep::models {
namespace {

// Dense, with sums in fp32; TFLOP/s. The longest entry whose words are all in a GPU's name applies.
struct Datasheet {
  const char* words;
  double bf16, tf32, fp32;
};
constexpr Datasheet kDatasheets[] = {
    {"V100", 0, 0, 15.7},
    {"A100", 312, 156, 19.5},
    {"A800", 312, 156, 19.5},
    {"A30", 165, 82, 10.3},
    {"A10", 125, 62.5, 31.2},
    {"A10G", 70, 35, 31.5},
    {"A40", 149.7, 74.8, 37.4},
    {"RTX A6000", 154.8, 77.4, 38.7},
    {"L4", 121, 60, 30.3},
    {"L40", 181, 90.5, 90.5},
    {"L40S", 362, 183, 91.6},
    {"H100", 989.4, 494.7, 66.9},
    {"H100 PCIe", 756, 378, 51.2},
    {"H100 NVL", 835.5, 417.5, 60},
    {"H200", 989.4, 494.7, 66.9},
    {"H200 NVL", 835.5, 417.5, 60},
    {"GH200", 989.4, 494.7, 66.9},
    {"B200", 2250, 1100, 75},
    {"GB200", 2500, 1250, 80},
    {"RTX 3080", 59.5, 29.8, 29.8},
    {"RTX 3090", 71, 35.6, 35.6},
    {"RTX 4080", 97.5, 48.7, 48.7},
    {"RTX 4090", 165.2, 82.6, 82.6},
    {"RTX 5090", 209.5, 104.8, 104.8},
};

// "NVIDIA A100-SXM4-80GB": NVIDIA, A100, SXM4, 80GB.
std::vector<std::string> Words(std::string text) {
  std::replace(text.begin(), text.end(), '-', ' ');
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

// Whether a word only names the vendor, the form factor or the memory. Any other may name another
// card, or a part of one: "Laptop", "Ti", "SUPER", "D", "MIG".
bool IsPlain(const std::string& word) {
  static const std::regex plain("NVIDIA|Tesla|GeForce|SXM[0-9]?|PCI[eE]|[0-9]+GB?|HBM[0-9]e?");
  return std::regex_match(word, plain);
}

// Whether `words` name the card `name`.
bool IsCard(const std::vector<std::string>& name, const std::vector<std::string>& words) {
  const auto has = [](const std::vector<std::string>& all, const std::string& word) {
    return std::find(all.begin(), all.end(), word) != all.end();
  };
  return std::all_of(words.begin(), words.end(), [&](const auto& w) { return has(name, w); }) &&
         std::all_of(name.begin(), name.end(),
                     [&](const auto& w) { return has(words, w) || IsPlain(w); });
}

// Seconds of the fastest of some products [n, n] x [n, n].
double TimeProduct(Device device, DType dtype, int64_t n) {
  using Clock = std::chrono::steady_clock;
  constexpr auto kBudget = std::chrono::milliseconds(20);
  const GradMode no_grad(false);
  const Tensor x = Tensor::Full({n, n}, 0.5, dtype, device);
  const Tensor weight = Tensor::Full({n, n}, 0.5, dtype, device);
  double best = INFINITY;
  std::optional<Clock::time_point> first;  // of the second product: the first chooses a kernel
  for (int i = 0; i < 20 && (!first || Clock::now() - *first < kBudget); ++i) {
    Synchronize(CurrentStream(device));
    const Clock::time_point start = Clock::now();
    ops::Linear(x, weight);
    Synchronize(CurrentStream(device));
    if (i == 0) continue;
    if (!first) first = start;
    best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
  }
  return best;
}

}  // namespace

std::optional<double> DatasheetFlops(const std::string& name, const std::string& precision) {
  const Datasheet* found = nullptr;
  size_t most = 0;  // words
  for (const Datasheet& d : kDatasheets) {
    const std::vector<std::string> words = Words(d.words);
    if (words.size() <= most || !IsCard(Words(name), words)) continue;
    found = &d;
    most = words.size();
  }
  if (found == nullptr) return {};
  const double tera = SizeOf(WeightDType(precision)) == 2 ? found->bf16  // and fp16
                      : precision == "tf32"               ? found->tf32
                                                          : found->fp32;
  return tera > 0 ? std::optional(tera * 1e12) : std::nullopt;
}

std::optional<double> MeasureGemmFlops(Device device, const std::string& precision) {
  if (device.is_cuda() && cuda::Simulated()) return {};
  cuda::AllowTf32(precision == "tf32");
  // Enough work for each thread.
  const int64_t side = device.is_cuda() ? 4096 : 512 * std::lround(std::cbrt(NumThreads()));
  Allocator& allocator = GetAllocator(device);
  const double seconds = TimeProduct(device, WeightDType(precision), side);
  allocator.Trim();
  allocator.ResetPeak();
  return 2.0 * static_cast<double>(side * side * side) / seconds;
}

std::optional<double> Utilization::Mfu(double tokens_per_second) const {
  if (!peak_flops) return {};
  return flops_per_token * tokens_per_second / (*peak_flops * static_cast<double>(ranks));
}

void Utilization::Correct(double tokens_per_second) {
  if (const auto share = GemmShare(tokens_per_second)) *gemm_flops *= std::max(1.0, *share);
}

std::optional<double> Utilization::GemmShare(double tokens_per_second) const {
  if (!gemm_flops) return {};
  return flops_per_token * tokens_per_second / (*gemm_flops * static_cast<double>(ranks));
}

std::string Utilization::Describe(double tokens_per_second) const {
  std::string text;
  if (const auto share = GemmShare(tokens_per_second))
    text = fmt::format("{:.0f}% of GEMM", 100 * *share);
  const auto mfu = Mfu(tokens_per_second);
  if (!mfu) return text;
  return fmt::format("mfu {:.0f}%{}", 100 * *mfu, text.empty() ? "" : " (" + text + ")");
}

Utilization MeasureUtilization(Device device, const std::string& precision, int64_t ranks,
                               double flops_per_token) {
  Utilization u{.flops_per_token = flops_per_token, .ranks = ranks};
  if (device.is_cuda() && !cuda::Simulated())
    u.peak_flops = DatasheetFlops(cuda::GetDeviceInfo(device).name, precision);
  u.gemm_flops = MeasureGemmFlops(device, precision);
  return u;
}

}  // namespace lockstep::models
