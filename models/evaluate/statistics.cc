#include "models/evaluate/statistics.h"

#include <cmath>
#include <numeric>
#include <vector>

#include "core/thread_pool.h"
#include "models/evaluate/python_random.h"

namespace lockstep::models {
namespace {

double SampleDeviation(std::span<const double> values) {
  const double mean = Mean(values);
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return std::sqrt(squares / static_cast<double>(values.size() - 1));
}

}  // namespace

double Mean(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double MeanError(std::span<const double> values) {
  if (values.size() < 2) return NAN;
  return SampleDeviation(values) / std::sqrt(static_cast<double>(values.size()));
}

double Perplexity(std::span<const double> log_probabilities) {
  return std::exp(-Mean(log_probabilities));
}

double PerplexityError(std::span<const double> log_probabilities) {
  constexpr int64_t kChunks = 100, kPerChunk = 1000;
  const auto n = static_cast<double>(log_probabilities.size());
  std::vector<double> resamples(kChunks * kPerChunk);
  ParallelForEach(kChunks, 1, [&](int64_t chunk) {
    PythonRandom random(static_cast<uint32_t>(chunk));
    for (int64_t i = 0; i < kPerChunk; ++i) {
      double sum = 0;
      for (size_t j = 0; j < log_probabilities.size(); ++j) {
        sum += log_probabilities[static_cast<size_t>(random.Random() * n)];
      }
      resamples[static_cast<size_t>(chunk * kPerChunk + i)] = std::exp(-sum / n);
    }
  });
  return SampleDeviation(resamples);
}

double PooledError(std::span<const double> errors, std::span<const int64_t> sizes) {
  double sum = 0, all = 0;
  for (size_t i = 0; i < errors.size(); ++i) {
    const auto n = static_cast<double>(sizes[i]);
    sum += (n - 1) * errors[i] * errors[i] * n;
    all += n;
  }
  return std::sqrt(sum / (all - static_cast<double>(errors.size())) / all);
}

double UnweightedError(std::span<const double> errors) {
  double squares = 0;
  for (const double error : errors) squares += error * error;
  return std::sqrt(squares) / static_cast<double>(errors.size());
}

}  // namespace lockstep::models
