// Times every op, forward and backward, from its OpCase:
//   bazel run -c opt //kernels:bench -- --filter=layer_norm --json=$PWD/bench.json
//   bazel run -c opt //kernels:bench -- --filter=layer_norm --baseline=$PWD/bench.json
// or those of a GPT-2's training step, at its sizes:
//   bazel run -c opt //kernels:bench -- --gpt=16,1024,12,768,50304,12 --device=cuda
// or counts what their kernels do, on a simulated GPU:
//   bazel run -c opt //kernels:bench -- --gpt=1,256,2,128,1024,1 --device=sim --counters
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <optional>

#include "core/autograd/engine.h"
#include "core/cuda/device.h"
#include "core/cuda/error.h"
#include "core/io/file.h"
#include "core/io/json.h"
#include "core/kernel_choices.h"
#include "core/thread_pool.h"
#include "kernels/attention/attention_kernels.h"
#include "kernels/bench/bits.h"
#include "kernels/bench/gpt.h"
#include "kernels/bench/library.h"
#include "kernels/bench/timing.h"
#include "kernels/op_case/op_case.h"
#include "tools/cudasim/counters.h"

namespace lockstep {
namespace {

struct Options {
  std::string filter, device = "cpu", dtype, json, baseline;
  std::vector<int64_t> gpt;
  int threads = 0;
  bool list = false, gemm_bits = false, counters = false;
  double milliseconds = 100;
  double slowdown = 1.15;
};

// ---- Benchmarks ----

struct Benchmark {
  const OpCase* op;
  OpSample sample;
  DType dtype;
  bool backward;
  double calls = 0;  // per training step, if it is part of one

  std::string name() const { return StrCat(op->name, "/", sample.name, "/", dtype, "/", pass()); }
  const char* pass() const { return backward ? "backward" : "forward"; }
  double flops() const {
    return backward ? sample.benchmark->backward_flops : sample.benchmark->flops;
  }
  double bytes() const {
    return (backward ? sample.benchmark->backward_elements : sample.benchmark->elements) *
           static_cast<double>(SizeOf(dtype));
  }
};

bool HasGradient(const InputSpec& spec) { return spec.differentiable && !spec.index; }

GptShape ShapeOf(const Options& options) {
  const std::vector<int64_t>& n = options.gpt;
  return {.batch = n[0],
          .sequence = n[1],
          .heads = n[2],
          .width = n[3],
          .vocabulary = n[4],
          .layers = n[5]};
}

void AddBenchmarks(const OpCase& c, const Options& options, double calls,
                   std::vector<Benchmark>& found) {
  for (const OpSample& s : c.samples()) {
    if (!s.benchmark || !SelectsSample(options.filter, c, s)) continue;
    const bool gradient =
        c.differentiable && std::any_of(s.inputs.begin(), s.inputs.end(), HasGradient);
    for (DType dtype : c.dtypes) {
      // f64 is for checks, not for training.
      const bool wanted = options.dtype.empty() ? dtype != DType::kF64 && dtype != DType::kF16
                                                : dtype == ParseDType(options.dtype);
      if (!wanted) continue;
      found.push_back({&c, s, dtype, false, calls});
      if (gradient) found.push_back({&c, s, dtype, true, calls});
    }
  }
}

// The benchmarks of all ops, or of a training step.
std::vector<Benchmark> Select(const Options& options, const std::vector<StepCase>& step) {
  std::vector<Benchmark> found;
  if (step.empty()) {
    for (const OpCase* c : FindOpCases(options.filter)) AddBenchmarks(*c, options, 0, found);
  }
  for (const StepCase& c : step) AddBenchmarks(c.op, options, c.calls, found);
  LS_CHECK(!found.empty(), "--filter=", options.filter, " --dtype=", options.dtype,
           " selects no benchmark; see --list");
  return found;
}

Tensor RootGradient(const Tensor& y) {
  const OpSample dy = {.name = "dy", .inputs = {{.shape = y.shape()}}};
  return InputTensor(dy.inputs[0], InputValues(dy, 0, y.dtype()), y.dtype(), y.device());
}

// Integers are token ids. A few ids make up most of a text: by Zipf's law, an id's frequency is
// inversely proportional to its rank.
RefTensor AsTokens(const InputSpec& spec, RefTensor uniform) {
  const double n = spec.high - spec.low;
  for (double& x : uniform.data) {
    x = spec.low + std::floor(std::pow(n + 1, (x - spec.low + 0.5) / n) - 1);
  }
  return uniform;
}

// How long a benchmark took, and how long the vendor's library takes for the same; library is empty
// where there is none.
struct Measured {
  Timing own, library;
  std::string library_name;
};

std::vector<Tensor> MakeInputs(const Benchmark& b, Device device) {
  std::vector<Tensor> inputs;
  for (size_t i = 0; i < b.sample.inputs.size(); ++i) {
    const InputSpec& spec = b.sample.inputs[i];
    RefTensor values = InputValues(b.sample, i, b.dtype);
    if (spec.index) values = AsTokens(spec, std::move(values));
    inputs.push_back(InputTensor(spec, values, b.dtype, device));
  }
  return inputs;
}

// A training step's forward keeps what its backward needs.
void RequireGradients(const Benchmark& b, std::span<Tensor> inputs) {
  if (!b.backward && b.calls == 0) return;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (HasGradient(b.sample.inputs[i])) inputs[i].SetRequiresGrad();
  }
}

// The results that have gradients.
std::vector<Tensor> RunForward(const Benchmark& b, std::span<const Tensor> inputs) {
  std::vector<Tensor> roots = b.sample.run(inputs);
  std::erase_if(roots, [](const Tensor& y) { return !y.requires_grad(); });
  return roots;
}

Measured RunBenchmark(const Benchmark& b, Bench& bench) {
  std::vector<Tensor> inputs = MakeInputs(b, bench.device());
  Measured measured;
  // cuDNN's attention is compared with our own kernels, whichever the op would choose.
  std::optional<cuda::AttentionKernelsScope> ours;
  if (const auto call = FindLibraryCall(*b.op, b.sample, inputs, b.backward)) {
    measured.library_name = call->library;
    measured.library = bench.Measure([] {}, call->run);
    if (call->library == "cuDNN") ours.emplace(cuda::AttentionKernels::kFlash);
  }
  const Stream stream = CurrentStream(bench.device());
  RequireGradients(b, inputs);
  if (!b.backward) {
    std::vector<Tensor> outputs;
    measured.own = bench.Measure([&] { outputs.clear(); }, [&] { outputs = b.sample.run(inputs); });
    return measured;
  }
  std::vector<Tensor> roots, grads;
  measured.own = bench.Measure(
      [&] {
        for (const Tensor& x : inputs) x.ZeroGrad();
        roots = RunForward(b, inputs);
        if (grads.empty()) {
          for (const Tensor& y : roots) grads.push_back(RootGradient(y));
        }
        Synchronize(stream);
      },
      [&] { Backward(roots, grads); });
  return measured;
}

// ---- Counting ----

// What the kernels of one call did.
cudasim::CountsByKernel CountBenchmark(const Benchmark& b, Device device) {
  std::vector<Tensor> inputs = MakeInputs(b, device), roots, grads;
  const Stream stream = CurrentStream(device);
  RequireGradients(b, inputs);
  if (b.backward) {
    roots = RunForward(b, inputs);
    if (roots.empty()) return {};
    for (const Tensor& y : roots) grads.push_back(RootGradient(y));
  }
  Synchronize(stream);
  cudasim::CountKernels(true);
  if (b.backward) {
    Backward(roots, grads);
  } else {
    b.sample.run(inputs);
  }
  Synchronize(stream);
  cudasim::CountKernels(false);
  return cudasim::TakeCounts();
}

int RunCounters(const std::vector<Benchmark>& benchmarks, Device device) {
  LS_CHECK(device.is_cuda() && cudasim::CountKernels != nullptr,
           "--counters counts what a simulated GPU does; choose --device=sim");
  std::printf("%s", cudasim::FormatCounts("op/sample/dtype/pass", {}).c_str());
  std::string excess;
  for (const Benchmark& b : benchmarks) {
    const cudasim::CountsByKernel counts = CountBenchmark(b, device);
    if (counts.empty()) continue;
    std::printf("%s", cudasim::FormatCounts(b.name(), counts).c_str());
    std::fflush(stdout);
    const std::string worst = cudasim::FormatExcess(counts, 1.2);
    if (!worst.empty()) excess += "\n" + b.name() + "\n" + worst;
  }
  std::printf("\nbeyond 1.2 times their ideal:\n%s", excess.c_str());
  return 0;
}

// ---- Reporting ----

// What the figures were measured on: only those of one machine can be compared.
OrderedJson DescribeMachine(Device device) {
  std::string name = "CPU";
  if (device.is_cuda()) {
    cudaDeviceProp properties;
    LS_CUDA(cudaGetDeviceProperties(&properties, device.index));
    name = properties.name;
  }
  return {{"device", name},
          {"simulated", device.is_cuda() && cuda::Simulated()},
          {"threads", NumThreads()}};
}

OrderedJson ReadBaseline(const std::string& path, const OrderedJson& machine) {
  try {
    OrderedJson baseline = OrderedJson::parse(ReadFile(path));
    const int threads = baseline.at("threads").get<int>();
    LS_CHECK(threads == NumThreads(), "--baseline=", path, " was measured with ", threads,
             " threads, this run has ", NumThreads(), "; set --threads=", threads);
    const auto device = baseline.at("device").get<std::string>();
    LS_CHECK(device == machine["device"], "--baseline=", path, " was measured on ", device,
             ", this run is on ", machine["device"].get<std::string>(), "; choose --device");
    return baseline.at("benchmarks");
  } catch (const JsonError& error) {
    throw InputError(
        StrCat("--baseline=", path, " is not a file that --json wrote: ", error.what()));
  }
}

// The median over the baseline's; 0 if the baseline lacks the benchmark.
double Ratio(const OrderedJson& baseline, const std::string& name, const Timing& t) {
  if (!baseline.contains(name)) return 0;
  return t.median / baseline[name].at("median_us").get<double>() * 1e6;
}

// Slower than allowed, and by more than either run's noise.
bool Regressed(const OrderedJson& baseline, const std::string& name, const Timing& t,
               double slowdown) {
  return Ratio(baseline, name, t) > slowdown &&
         t.p20 * 1e6 > baseline[name].at("p80_us").get<double>();
}

std::string Optional(double value, const char* format) {
  if (!(value > 0)) return "-";
  char text[32];
  std::snprintf(text, sizeof(text), format, value);
  return text;
}

// Writes the machine, the results and which kernels ran.
void WriteJson(const std::string& path, OrderedJson machine, const OrderedJson& results) {
  machine.update(results);
  machine.update(OrderedJson::parse(KernelChoicesJson()));
  std::ofstream file(path);
  file << machine.dump(1) << "\n";
  if (!file.flush()) throw IoError(StrCat("cannot write --json=", path));
}

OrderedJson ToJson(const Peaks& peaks, const OrderedJson& benchmarks) {
  OrderedJson gemm = OrderedJson::object();
  for (const auto& [dtype, flops] : peaks.flops()) gemm[std::string(Name(dtype))] = flops;
  return {{"copy_bytes_per_second", peaks.bytes_per_second()},
          {"gemm_flops_per_second", gemm},
          {"benchmarks", benchmarks}};
}

// GPUs are counted in TFLOP/s, the CPU and simulated ones in GFLOP/s.
double FlopsUnit(Device device) { return device.is_cuda() && !cuda::Simulated() ? 1e12 : 1e9; }
const char* FlopsName(Device device) { return FlopsUnit(device) == 1e12 ? "TFLOP/s" : "GFLOP/s"; }

void PrintPeaks(const Peaks& peaks, Device device) {
  std::printf("copy       %8.1f GB/s\n", peaks.bytes_per_second() / 1e9);
  for (const auto& [dtype, flops] : peaks.flops()) {
    std::printf("GEMM %-5s %8.1f %s\n", std::string(Name(dtype)).c_str(), flops / FlopsUnit(device),
                FlopsName(device));
  }
  std::printf("%-52s %7s %11s %11s %11s %9s %8s %9s %8s %7s %7s\n", "op/sample/dtype/pass",
              "samples", "median us", "p20 us", "p80 us", "GB/s", "of copy", FlopsName(device),
              "of GEMM", "library", "ratio");
}

// Prints a line and returns what goes into the JSON file.
OrderedJson Report(const Benchmark& b, const Measured& m, Device device, Peaks& peaks, double ratio,
                   bool regressed) {
  const Timing& t = m.own;
  const double of_copy = b.bytes() > 0 ? peaks.CopySeconds(b.bytes()) / t.median : 0;
  const double of_gemm = b.flops() / t.median / peaks.flops().at(b.dtype);
  const double library = m.library_name.empty() ? 0 : t.median / m.library.median;
  std::printf("%-52s %7d %11.1f %11.1f %11.1f %9s %8s %9s %8s %7s %7s%s\n", b.name().c_str(),
              t.samples, t.median * 1e6, t.p20 * 1e6, t.p80 * 1e6,
              Optional(b.bytes() / t.median / 1e9, "%.1f").c_str(),
              Optional(100 * of_copy, "%.0f%%").c_str(),
              Optional(b.flops() / t.median / FlopsUnit(device), "%.1f").c_str(),
              Optional(100 * of_gemm, "%.0f%%").c_str(), Optional(library, "%.2f").c_str(),
              Optional(ratio, "%.2f").c_str(), regressed ? "  SLOWER" : "");
  std::fflush(stdout);
  OrderedJson json = {{"samples", t.samples},     {"median_us", t.median * 1e6},
                      {"p20_us", t.p20 * 1e6},    {"p80_us", t.p80 * 1e6},
                      {"bytes", b.bytes()},       {"flops", b.flops()},
                      {"share_of_copy", of_copy}, {"share_of_gemm", of_gemm}};
  if (library > 0) {
    json["library"] = m.library_name;
    json["library_us"] = m.library.median * 1e6;
    json["ratio_to_library"] = library;
  }
  return json;
}

// The milliseconds of a training step that each op takes in a pass, and their sums by dtype.
class StepTable {
 public:
  void Add(const Benchmark& b, const Timing& t) {
    if (b.calls == 0) return;
    const double ms = b.calls * t.median * 1e3;
    ms_[std::string(Name(b.dtype))][StrCat(b.op->name, " ", b.pass())] += ms;
    sums_[std::string(Name(b.dtype))] += ms;
  }
  void Print() const {
    for (const auto& [dtype, parts] : ms_) {
      std::printf("a training step in %s, by its kernels' times: %.2f ms\n", dtype.c_str(),
                  sums_.at(dtype));
      for (const auto& [name, ms] : parts) std::printf("  %-36s %9.3f ms\n", name.c_str(), ms);
    }
  }
  OrderedJson ToJson() const { return {{"step_ms", ms_}, {"step_sum_ms", sums_}}; }

 private:
  std::map<std::string, std::map<std::string, double>> ms_;
  std::map<std::string, double> sums_;
};

// Whether equal calls gave equal bits.
int RunGemmBits(const Options& options, Device device) {
  LS_CHECK(device.is_cuda(), "--gemm_bits is about cuBLASLt; choose --device=cuda or sim");
  OrderedJson answers = OrderedJson::array();
  int64_t failures = 0;
  std::printf("%-24s %-5s %-28s %12s %12s\n", "product", "dtype", "changed", "elements",
              "different");
  for (const BitsAnswer& a : GemmBits(ShapeOf(options), device)) {
    const std::string dtype(Name(a.dtype));
    std::printf("%-24s %-5s %-28s %12lld %12s\n", a.product.c_str(), dtype.c_str(),
                a.change.c_str(), static_cast<long long>(a.elements),
                a.refused ? "refused" : std::to_string(a.different).c_str());
    answers.push_back({{"product", a.product},
                       {"dtype", dtype},
                       {"change", a.change},
                       {"elements", a.elements},
                       {"different", a.different},
                       {"refused", a.refused}});
    failures += a.change == BitsAnswer::kAgain && (a.refused || a.different > 0);
  }
  if (!options.json.empty()) {
    WriteJson(options.json, DescribeMachine(device), {{"gemm_bits", answers}});
  }
  if (failures > 0) std::printf("%lld equal calls gave different bits\n", (long long)failures);
  return failures > 0 ? 1 : 0;
}

int Run(const Options& options) {
  const Device device = cuda::ParseDevice(options.device);
  if (options.gemm_bits) return RunGemmBits(options, device);
  auto step = options.gpt.empty() ? std::vector<StepCase>{} : GptStep(ShapeOf(options));
  if (options.counters && !step.empty()) {
    for (StepCase& c : OtherGptOps(ShapeOf(options))) step.push_back(std::move(c));
  }
  const std::vector<Benchmark> benchmarks = Select(options, step);
  if (options.list) {
    for (const Benchmark& b : benchmarks) std::printf("%s\n", b.name().c_str());
    return 0;
  }
  if (options.threads > 0) SetNumThreads(options.threads);
  if (options.counters) return RunCounters(benchmarks, device);
  const OrderedJson machine = DescribeMachine(device);
  const OrderedJson baseline =
      options.baseline.empty() ? OrderedJson::object() : ReadBaseline(options.baseline, machine);
#ifndef NDEBUG
  std::fprintf(stderr, "bench: this build has assertions; time with bazel run -c opt\n");
#endif
  std::printf("on %s (%s), %d threads%s\n", ToString(device).c_str(),
              machine["device"].get<std::string>().c_str(), NumThreads(),
              machine["simulated"] ? "; SIMULATED: these times say nothing about a GPU" : "");
  Bench bench(device, options.milliseconds / 1000);
  Peaks peaks(bench);
  for (const Benchmark& b : benchmarks) {
    if (!peaks.flops().contains(b.dtype)) peaks.MeasureGemm(b.dtype);
  }
  PrintPeaks(peaks, device);
  OrderedJson results = OrderedJson::object();
  StepTable table;
  int regressions = 0;
  for (const Benchmark& b : benchmarks) {
    const Measured m = RunBenchmark(b, bench);
    table.Add(b, m.own);
    const bool regressed = Regressed(baseline, b.name(), m.own, options.slowdown);
    results[b.name()] = Report(b, m, device, peaks, Ratio(baseline, b.name(), m.own), regressed);
    regressions += regressed;
  }
  table.Print();
  if (!options.json.empty()) {
    OrderedJson found = ToJson(peaks, results);
    if (!step.empty()) found.update(table.ToJson());
    WriteJson(options.json, machine, found);
  }
  if (regressions > 0) {
    std::printf("%d benchmarks are more than %.0f%% slower than %s\n", regressions,
                100 * (options.slowdown - 1), options.baseline.c_str());
  }
  return regressions > 0 ? 1 : 0;
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app{
      "Times ops, forward and backward, from their OpCases. 'of copy' is the share of what a copy\n"
      "of as many bytes reaches, 'of GEMM' of what a large product of matrices does, both "
      "measured\n"
      "here; 'library' is the time over that of bare cuBLASLt calls, 'ratio' over the baseline's."};
  app.add_option("--filter", options.filter, "Ops, or op/sample, whose name contains this");
  app.add_option("--device", options.device, "Where to run: cpu, cuda[:i], sim[:i], auto")
      ->capture_default_str();
  CLI::Option* const gpt =
      app.add_option("--gpt", options.gpt,
                     "The ops of a GPT-2's training step: micro-batch,sequence,heads,width,"
                     "vocabulary,layers")
          ->delimiter(',')
          ->expected(6)
          ->check(CLI::PositiveNumber);
  app.add_flag(
         "--gemm_bits", options.gemm_bits,
         "For the products of --gpt: whether an element's bits depend on the numbers of rows "
         "and columns and on leading dimensions; and that equal calls give equal bits (else 1)")
      ->needs(gpt);
  app.add_flag("--counters", options.counters,
               "With --device=sim: print what the kernels do, not how long they take: instructions "
               "of\nwarps by kind, sectors of global and cycles of shared memory");
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
