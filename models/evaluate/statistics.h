// Means and their standard errors, as lm-evaluation-harness computes them (api/metrics.py).
#pragma once

#include <cstdint>
#include <span>

namespace lockstep::models {

double Mean(std::span<const double> values);
// The standard deviation of a sample, with n - 1, over sqrt(n); NaN for a single value.
double MeanError(std::span<const double> values);
// exp(-mean), and its standard error by 100,000 resamples with Python's random.Random(0), (1), ...
// of 1000 each. On all threads.
double Perplexity(std::span<const double> log_probabilities);
double PerplexityError(std::span<const double> log_probabilities);
// Of a mean over several groups weighted by their sizes, from their standard errors.
double PooledError(std::span<const double> errors, std::span<const int64_t> sizes);
// Of an unweighted mean over groups.
double UnweightedError(std::span<const double> errors);

}  // namespace lockstep::models
