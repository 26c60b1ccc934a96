#include "nn/init.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/math.h"
#include "core/philox.h"

namespace lockstep::nn {
namespace {

// Calls f(element, block, i) with element `first + i` and the Philox block that holds it: element e
// owns word e % 4 of block e / 4.
template <class F>
void ForEachBlock(int64_t first, int64_t n, uint64_t seed, const std::string& name, const F& f) {
  const Philox philox(seed);
  const uint64_t stream = HashName(name);
  for (int64_t i = 0; i < n;) {
    const auto element = static_cast<uint64_t>(first + i);
    const Philox::Block block = philox(stream, element / 4);
    const int64_t end = std::min<int64_t>(n, i + 4 - static_cast<int64_t>(element % 4));
    for (; i < end; ++i) f(i, block, static_cast<int>((first + i) % 4));
  }
}

// The middle of the word's interval of width 2^-32: in (0, 1), never its ends.
double OpenUniform(uint32_t word) { return (word + 0.5) * 0x1p-32; }

}  // namespace

Initializer Constant(double value) {
  return [value](std::span<float> out, int64_t, uint64_t, const std::string&) {
    std::fill(out.begin(), out.end(), static_cast<float>(value));
  };
}

Initializer Uniform(double low, double high) {
  LS_CHECK(std::isfinite(low) && std::isfinite(high) && low <= high,
           "Uniform(low, high) needs finite low <= high, got ", low, " and ", high);
  return [=](std::span<float> out, int64_t first, uint64_t seed, const std::string& name) {
    ForEachBlock(first, std::ssize(out), seed, name,
                 [&](int64_t i, const Philox::Block& block, int word) {
                   out[i] = static_cast<float>(low + (high - low) * OpenUniform(block.v[word]));
                 });
  };
}

Initializer Normal(double mean, double std) {
  LS_CHECK(std::isfinite(mean) && std::isfinite(std) && std >= 0,
           "Normal(mean, std) needs a finite mean and a finite std >= 0, got ", mean, " and ", std);
  return [=](std::span<float> out, int64_t first, uint64_t seed, const std::string& name) {
    ForEachBlock(first, std::ssize(out), seed, name,
                 [&](int64_t i, const Philox::Block& block, int word) {
                   // Words 0 and 1 make two elements, words 2 and 3 the next two.
                   const int pair = word & 2;
                   const double radius = std::sqrt(-2 * math::Log(OpenUniform(block.v[pair])));
                   const double angle = 2 * std::numbers::pi * OpenUniform(block.v[pair + 1]);
                   const double z = radius * (word & 1 ? math::Sin(angle) : math::Cos(angle));
                   out[i] = static_cast<float>(mean + std * z);
                 });
  };
}

Initializer KaimingUniform(int64_t fan_in) {
  LS_CHECK(fan_in > 0, "KaimingUniform needs a positive number of inputs, got ", fan_in);
  const double bound = 1 / std::sqrt(static_cast<double>(fan_in));
  return Uniform(-bound, bound);
}

}  // namespace lockstep::nn
