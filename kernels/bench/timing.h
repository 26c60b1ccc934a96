// How long work on a device takes, and what the device can do at best, by the same means. For
// the benchmark only.
#pragma once

#include <functional>
#include <map>
#include <memory>

#include "core/cuda/timer.h"
#include "core/tensor.h"

namespace lockstep {

// Uniform in [-1, 1). A GPU multiplies zeros, or one number all over, a tenth faster than what
// training multiplies: it saves the power of switching.
Tensor RandomTensor(const Shape& shape, DType dtype, Device device);

struct Timing {
  int samples = 0;
  double median = 0, p20 = 0, p80 = 0;  // seconds
};

// A device, and how it is measured: the CPU by the host's clock, others by their own, between
// events, so that the launches' way to the device does not count.
class Bench {
 public:
  // `seconds`: how long what is measured runs in all.
  Bench(Device device, double seconds);

  Device device() const { return device_; }

  // Runs `prepare` untimed, clears the caches, then runs `body` timed: for a quarter of the time to
  // warm up and then until the timed parts add up to `seconds`. What takes long runs seven times,
  // what is quick at most 1000, and no measurement goes on for more than 20 times its time.
  Timing Measure(const std::function<void()>& prepare, const std::function<void()>& body);

 private:
  double Run(const std::function<void()>& prepare, const std::function<void()>& body);

  const Device device_;
  const double seconds_;
  std::unique_ptr<cuda::Timer> timer_;  // of a GPU
  const Tensor flush_;
};

// What the device can do, measured where it is asked for.
class Peaks {
 public:
  explicit Peaks(Bench& bench);

  // Of a copy much larger than caches, read and written.
  double bytes_per_second() const { return bytes_per_second_; }
  // Of the square products of matrices that MeasureGemm multiplied, per second.
  const std::map<DType, double>& flops() const { return flops_; }

  void MeasureGemm(DType dtype);
  // How long a copy takes that moves this many bytes: half of them read, half written. A small one
  // reaches less than a large one, and so does any kernel of its size.
  double CopySeconds(double bytes);

 private:
  Bench& bench_;
  double bytes_per_second_ = 0;
  std::map<DType, double> flops_;
  std::map<int64_t, double> copies_;  // by elements
};

}  // namespace lockstep
