// Times every op, forward and backward, from its OpCase:
//   bazel run -c opt //kernels:bench -- --filter=layer_norm --json=$PWD/bench.json
//   bazel run -c opt //kernels:bench -- --filter=layer_norm --baseline=$PWD/bench.json
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/autograd.h"
#include "core/cuda/device.h"
#include "core/cuda/timer.h"
#include "core/engine.h"
#include "core/slots.h"
#include "core/thread_pool.h"
#include "kernels/linear/linear.h"
#include "kernels/op_case.h"

namespace lockstep {
namespace {

struct Options {
  std::string filter, device = "cpu", dtype, json, baseline;
  int threads = 0;
  bool list = false;
  double milliseconds = 100;
  double slowdown = 1.15;
};

// ---- Timing ----

using Clock = std::chrono::steady_clock;
double Since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Times work on a device: the CPU by the host's clock, others by their own, between events, so that
// the launches' way to the device does not count.
class Stopwatch {
 public:
  explicit Stopwatch(Device device) {
    if (device.is_cuda()) timer_ = std::make_unique<cuda::Timer>(CurrentStream(device));
  }
  void Start() {
    if (timer_) {
      timer_->Start();
    } else {
      start_ = Clock::now();
    }
  }
  double Stop() { return timer_ ? timer_->Stop() : Since(start_); }

 private:
  std::unique_ptr<cuda::Timer> timer_;
  Clock::time_point start_;
};

struct Timing {
  int samples = 0;
  double median = 0, p20 = 0, p80 = 0;  // seconds
};

// A device, and how it is measured.
class Bench {
 public:
  Bench(Device device, double seconds)
      : device_(device),
        seconds_(seconds),
        stopwatch_(device),
        // Several times the last level of cache of any device.
        flush_(Tensor::Empty({device.is_cpu()    ? 64 << 20
                              : cuda::kSimulated ? 1 << 16
                                                 : 512 << 20},
                             DType::kU8, device)) {}

  Device device() const { return device_; }

  template <class Prepare, class Body>
  Timing Measure(const Prepare& prepare, const Body& body);

 private:
  // Pushes what an op left in the caches out of them, as the rest of a training step would.
  void FlushCaches() const { flush_.Fill(1); }

  const Device device_;
  const double seconds_;
  Stopwatch stopwatch_;
  const Tensor flush_;
};

// Runs `prepare` untimed, then `body` timed, for a quarter of the time to warm up and then until
// the timed parts add up to `seconds`. Ops that take long run seven times, quick ones at most 1000,
// and no benchmark goes on for more than 20 times its time.
template <class Prepare, class Body>
Timing Bench::Measure(const Prepare& prepare, const Body& body) {
  constexpr int kMinSamples = 7, kMaxSamples = 1000;
  const double seconds = seconds_;
  const auto run = [&] {
    prepare();
    FlushCaches();
    stopwatch_.Start();
    body();
    return stopwatch_.Stop();
  };
  const auto begin = Clock::now();
  for (double warm = 0; warm < seconds / 4 && Since(begin) < 5 * seconds;) warm += run();
  std::vector<double> times;
  double total = 0;
  const auto measured = Clock::now();
  while (static_cast<int>(times.size()) < kMinSamples ||
         (total < seconds && times.size() < kMaxSamples && Since(measured) < 20 * seconds)) {
    times.push_back(run());
    total += times.back();
  }
  std::sort(times.begin(), times.end());
  const auto quantile = [&](double q) {
    return times[static_cast<size_t>(q * static_cast<double>(times.size() - 1) + 0.5)];
  };
  return {static_cast<int>(times.size()), quantile(0.5), quantile(0.2), quantile(0.8)};
}

// ---- What the machine can do, measured by the same means ----

struct Peaks {
  double bytes_per_second = 0;
  std::map<DType, double> flops;  // of a GEMM

  // The least time for this much work, if both limits are reached at once.
  double Roofline(DType dtype, double work_flops, double bytes) const {
    const auto it = flops.find(dtype);
    const double compute = it == flops.end() ? 0 : work_flops / it->second;
    return std::max(compute, bytes / bytes_per_second);
  }
};

Peaks MeasurePeaks(const std::vector<DType>& dtypes, Bench& bench) {
  NoGrad no_grad;
  Peaks peaks;
  const bool gpu = bench.device().is_cuda() && !cuda::kSimulated;
  const Tensor from = Tensor::Zeros({gpu ? 128 << 20 : 16 << 20}, DType::kF32, bench.device());
  const Tensor to = Tensor::EmptyLike(from);
  const Timing copy = bench.Measure([] {}, [&] { to.CopyFrom(from); });
  peaks.bytes_per_second = 2.0 * static_cast<double>(from.bytes()) / copy.median;
  std::printf("copy       %8.1f GB/s\n", peaks.bytes_per_second / 1e9);
  for (DType dtype : dtypes) {
    const int64_t size = gpu ? 8192 : 1024;
    const Tensor a = Tensor::Full({size, size}, 0.5, dtype, bench.device()), b = a.Clone();
    const Timing gemm = bench.Measure([] {}, [&] { ops::Linear(a, b); });
    peaks.flops[dtype] = 2.0 * static_cast<double>(size * size * size) / gemm.median;
    std::printf("GEMM %-5s %8.1f GFLOP/s  (%lld x %lld x %lld)\n", std::string(Name(dtype)).c_str(),
                peaks.flops[dtype] / 1e9, static_cast<long long>(size),
                static_cast<long long>(size), static_cast<long long>(size));
  }
  return peaks;
}

// ---- Benchmarks ----

struct Benchmark {
  const OpCase* op;
  OpSample sample;
  DType dtype;
  bool backward;

  std::string name() const {
    return StrCat(op->name, "/", sample.name, "/", dtype, "/", backward ? "backward" : "forward");
  }
  // Of the pass: a backward that declares nothing counts as two forwards, as a GEMM's is.
  double flops() const {
    return !backward                   ? sample.flops
           : sample.backward_flops > 0 ? sample.backward_flops
                                       : 2 * sample.flops;
  }
  double bytes() const {
    const double elements = !backward                            ? sample.elements_moved
                            : sample.backward_elements_moved > 0 ? sample.backward_elements_moved
                                                                 : 2 * sample.elements_moved;
    return elements * static_cast<double>(SizeOf(dtype));
  }
};

bool HasGradient(const InputSpec& spec) { return spec.differentiable && !spec.index; }

std::vector<Benchmark> Select(const Options& options) {
  std::vector<Benchmark> found;
  for (const OpCase* c : FindOpCases(options.filter)) {
    for (const OpSample& s : c->samples()) {
      if ((s.flops == 0 && s.elements_moved == 0) || !SelectsSample(options.filter, *c, s))
        continue;
      const bool gradient =
          c->differentiable && std::any_of(s.inputs.begin(), s.inputs.end(), HasGradient);
      for (DType dtype : c->dtypes) {
        // Nobody trains in f64; it is there for checks.
        const bool wanted = options.dtype.empty() ? dtype != DType::kF64 && dtype != DType::kF16
                                                  : dtype == ParseDType(options.dtype);
        if (!wanted) continue;
        found.push_back({c, s, dtype, false});
        if (gradient) found.push_back({c, s, dtype, true});
      }
    }
  }
  LS_CHECK(!found.empty(), "--filter=", options.filter, " --dtype=", options.dtype,
           " selects no benchmark; see --list");
  return found;
}

Tensor RootGradient(const Tensor& y) {
  const OpSample dy = {.name = "dy", .inputs = {{.shape = y.shape()}}};
  return InputTensor(dy.inputs[0], InputValues(dy, 0, y.dtype()), y.dtype(), y.device());
}

Timing RunBenchmark(const Benchmark& b, Bench& bench) {
  std::vector<Tensor> inputs;
  for (size_t i = 0; i < b.sample.inputs.size(); ++i) {
    inputs.push_back(InputTensor(b.sample.inputs[i], InputValues(b.sample, i, b.dtype), b.dtype,
                                 bench.device()));
  }
  const Stream stream = CurrentStream(bench.device());
  if (!b.backward) {
    NoGrad no_grad;
    std::vector<Tensor> outputs;
    return bench.Measure([&] { outputs.clear(); }, [&] { outputs = b.sample.run(inputs); });
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (HasGradient(b.sample.inputs[i])) inputs[i].SetRequiresGrad();
  }
  std::vector<Tensor> roots, grads;
  return bench.Measure(
      [&] {
        for (const Tensor& x : inputs) x.ZeroGrad();
        roots = b.sample.run(inputs);
        std::erase_if(roots, [](const Tensor& y) { return !y.requires_grad(); });
        if (grads.empty()) {
          for (const Tensor& y : roots) grads.push_back(RootGradient(y));
        }
        Synchronize(stream);
      },
      [&] { Backward(roots, grads); });
}

// ---- Reporting ----

using Json = nlohmann::ordered_json;

Json ReadBaseline(const Options& options) {
  std::ifstream file(options.baseline);
  if (!file) throw InputError(StrCat("cannot read --baseline=", options.baseline));
  try {
    Json baseline = Json::parse(file);
    const int threads = baseline.at("threads").get<int>();
    LS_CHECK(threads == NumThreads(), "--baseline=", options.baseline, " was measured with ",
             threads, " threads, this run has ", NumThreads(), "; set --threads=", threads);
    return baseline.at("benchmarks");
  } catch (const nlohmann::json::exception& error) {
    throw InputError(StrCat("--baseline=", options.baseline,
                            " is not a file that --json has written: ", error.what()));
  }
}

// The median over the baseline's; 0 if that does not know the benchmark.
double Ratio(const Json& baseline, const std::string& name, const Timing& t) {
  if (!baseline.contains(name)) return 0;
  return t.median / baseline[name].at("median_us").get<double>() * 1e6;
}

// Slower than allowed, and by more than either run's noise.
bool Regressed(const Json& baseline, const std::string& name, const Timing& t, double slowdown) {
  return Ratio(baseline, name, t) > slowdown &&
         t.p20 * 1e6 > baseline[name].at("p80_us").get<double>();
}

std::string Optional(double value, const char* format) {
  if (!(value > 0)) return "-";
  char text[32];
  std::snprintf(text, sizeof(text), format, value);
  return text;
}

void WriteJson(const std::string& path, const Peaks& peaks, const Json& benchmarks) {
  Json gemm = Json::object();
  for (const auto& [dtype, flops] : peaks.flops) gemm[std::string(Name(dtype))] = flops;
  std::ofstream file(path);
  file << Json{{"threads", NumThreads()},
               {"copy_bytes_per_second", peaks.bytes_per_second},
               {"gemm_flops_per_second", gemm},
               {"benchmarks", benchmarks}}
              .dump(1)
       << "\n";
  if (!file.flush()) throw IoError(StrCat("cannot write --json=", path));
}

// Prints a line and returns what goes into the JSON file.
Json Report(const Benchmark& b, const Timing& t, const Peaks& peaks, double ratio, bool regressed) {
  const double share = peaks.Roofline(b.dtype, b.flops(), b.bytes()) / t.median;
  std::printf("%-52s %7d %11.1f %11.1f %11.1f %9s %9s %7s %7s%s\n", b.name().c_str(), t.samples,
              t.median * 1e6, t.p20 * 1e6, t.p80 * 1e6,
              Optional(b.bytes() / t.median / 1e9, "%.1f").c_str(),
              Optional(b.flops() / t.median / 1e9, "%.1f").c_str(),
              Optional(100 * share, "%.0f%%").c_str(), Optional(ratio, "%.2f").c_str(),
              regressed ? "  SLOWER" : "");
  std::fflush(stdout);
  return {{"samples", t.samples},  {"median_us", t.median * 1e6}, {"p20_us", t.p20 * 1e6},
          {"p80_us", t.p80 * 1e6}, {"bytes", b.bytes()},          {"flops", b.flops()},
          {"share_of_peak", share}};
}

int Run(const Options& options) {
  const Device device = cuda::ParseDevice(options.device);
  const std::vector<Benchmark> benchmarks = Select(options);
  if (options.list) {
    for (const Benchmark& b : benchmarks) std::printf("%s\n", b.name().c_str());
    return 0;
  }
  if (options.threads > 0) SetNumThreads(options.threads);
  const Json baseline = options.baseline.empty() ? Json::object() : ReadBaseline(options);
#ifndef NDEBUG
  std::fprintf(stderr, "bench: this build has assertions; time with bazel run -c opt\n");
#endif

  std::vector<DType> dtypes;
  for (const Benchmark& b : benchmarks) {
    if (std::count(dtypes.begin(), dtypes.end(), b.dtype) == 0) dtypes.push_back(b.dtype);
  }
  std::printf("on %s, %d threads\n", ToString(device).c_str(), NumThreads());
  if (device.is_cuda() && cuda::kSimulated) {
    std::fprintf(stderr, "bench: the times of a simulated GPU say nothing about a real one\n");
  }
  Bench bench(device, options.milliseconds / 1000);
  const Peaks peaks = MeasurePeaks(dtypes, bench);
  std::printf("%-52s %7s %11s %11s %11s %9s %9s %7s %7s\n", "op/sample/dtype/pass", "samples",
              "median us", "p20 us", "p80 us", "GB/s", "GFLOP/s", "peak", "ratio");
  Json results = Json::object();
  int regressions = 0;
  for (const Benchmark& b : benchmarks) {
    const Timing t = RunBenchmark(b, bench);
    const bool regressed = Regressed(baseline, b.name(), t, options.slowdown);
    results[b.name()] = Report(b, t, peaks, Ratio(baseline, b.name(), t), regressed);
    regressions += regressed;
  }
  if (!options.json.empty()) WriteJson(options.json, peaks, results);
  if (regressions > 0) {
    std::printf("%d benchmarks are more than %.0f%% slower than %s\n", regressions,
                100 * (options.slowdown - 1), options.baseline.c_str());
  }
  return regressions > 0 ? 1 : 0;
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app{
      "Times ops, forward and backward, from their OpCases. 'peak' is the share of what the\n"
      "measured copy bandwidth and GEMM rate allow; 'ratio' is the time over the baseline's."};
  app.add_option("--filter", options.filter, "Ops, or op/sample, whose name contains this");
  app.add_option("--device", options.device, "Where to run: cpu, cuda[:i], sim[:i], auto")
      ->capture_default_str();
  app.add_option("--dtype", options.dtype, "f64, f32, bf16 (default: all but f64)");
  app.add_option("--threads", options.threads, "CPU threads (default: all)")
      ->check(CLI::Range(1, 1024));
  app.add_option("--json", options.json, "Write the results here");
  app.add_option("--baseline", options.baseline, "Compare with results that --json wrote");
  app.add_option("--slowdown", options.slowdown, "Allowed ratio to the baseline")
      ->capture_default_str()
      ->check(CLI::Range(1.0, 100.0));
  app.add_option("--ms", options.milliseconds, "Measured time per benchmark")
      ->capture_default_str()
      ->check(CLI::Range(1.0, 1e5));
  app.add_flag("--list", options.list, "Print the names of the benchmarks and do nothing");
  CLI11_PARSE(app, argc, argv);
  return Run(options);
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  try {
    return lockstep::Main(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench: %s\n", error.what());
    return 2;
  }
}
