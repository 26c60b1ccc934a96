// How long work on a device takes, and what the device can do at best, by the same means. For
// the benchmark only.
#pragma once

#include <functional>
#include <map>
#include <memory>

#include "core/cuda/timer.h"
#include "core/tensor.h"

namespace lockstep {

// Uniform in [-1, 1). A GPU multiplies zeros, or the same number everywhere, a tenth faster than
// what training multiplies: fewer bits switch, which saves power.
Tensor RandomTensor(const Shape& shape, DType dtype, Device device);

struct Timing {
  int samples = 0;
  double median = 0, p20 = 0, p80 = 0;  // seconds
};

// A device, and how it is measured: the CPU by the host's clock, others by their own, between
// events, so that launch latency does not count.
class Bench {
 public:
  // `seconds`: how long what is measured runs in all.
  Bench(Device device, double seconds);

  Device device() const { return device_; }

  // Runs `prepare` untimed, clears the caches, then runs `body` timed: for a quarter of the time to
  // warm up and then until the timed parts add up to `seconds`. Slow work runs seven times, quick
  // work at most 1000 times, and no measurement takes more than 20 times `seconds` beyond those
  // seven.
  Timing Measure(const std::function<void()>& prepare, const std::function<void()>& body);

 private:
  double Run(const std::function<void()>& prepare, const std::function<void()>& body);

  const Device device_;
  const double seconds_;
  std::unique_ptr<cuda::Timer> timer_;  // for a GPU
  const Tensor flush_;
};

// What the device can do, measured when a value is first needed.
class Peaks {
 public:
  explicit Peaks(Bench& bench);

  // For a copy much larger than the caches, bytes read plus bytes written.
  double bytes_per_second() const { return bytes_per_second_; }
  // FLOP/s of the square matrix products that MeasureGemm timed.
  const std::map<DType, double>& flops() const { return flops_; }

  void MeasureGemm(DType dtype);
  // How long a copy that moves this many bytes takes: half of them read, half written. A small copy
  // reaches less bandwidth than a large one, and so does any kernel of its size.
  double CopySeconds(double bytes);

 private:
  Bench& bench_;
  double bytes_per_second_ = 0;
  std::map<DType, double> flops_;
  std::map<int64_t, double> copies_;  // by elements
};

}  // namespace lockstep
