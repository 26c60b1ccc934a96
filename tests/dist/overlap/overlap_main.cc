// Measures how much of a step's communication backward hides: one of the ranks that link.sh starts.
// Rank 0 prints a line of JSON.
//   overlap LAYERS WIDTH BATCH STEPS FIRST_BUCKET_MIB BUCKET_MIB [SUM]
// SUM: fast (the library's) or ordered (dist/data_parallel/fixed_order.h).
//
// Each step follows one without communication: their difference is what communication adds,
// whatever else the machine does meanwhile. It consists of the exposed time, the wait at the end of
// backward, and of the cost of messages to the core that computes. The parts of the step without
// communication are measured separately (forward, backward with the time at which each gradient is
// ready, update), and then the sum of each bucket. They yield T*, the best that overlap can do with
// these buckets, one at a time: each starts at the later of its ready time and the end of the
// previous one.
//
// The model is linear layers, on random inputs.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <iostream>
#include <map>
#include <optional>

#include "core/autograd/engine.h"
#include "core/io/json.h"
#include "core/thread_pool.h"
#include "dist/data_parallel/reducer.h"
#include "dist/world.h"
#include "nn/init.h"
#include "nn/linear.h"
#include "optim/sgd.h"

namespace lockstep::dist {
namespace {

using Clock = std::chrono::steady_clock;

double Milliseconds(Clock::duration d) {
  return std::chrono::duration<double, std::milli>(d).count();
}

// This thread's processor time.
double ProcessorMilliseconds() {
  timespec t = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return 1e3 * static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_nsec);
}

double Median(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + static_cast<int64_t>(v.size() / 2), v.end());
  return v[v.size() / 2];
}

Tensor Normal(const Shape& shape, double std, const std::string& name) {
  const Tensor t = Tensor::Empty(shape, DType::kF32);
  nn::Normal(0, std)({t.data<float>(), static_cast<size_t>(t.numel())}, 0, /*seed=*/1, name);
  return t;
}

class Layers : public ModuleOf<Tensor(const Tensor&)> {
 public:
  Layers(int64_t layers, int64_t width) {
    for (int64_t i = 0; i < layers; ++i) {
      layers_.push_back(std::make_unique<Child<Layer>>(this, StrCat("layer_", i),
                                                       std::make_shared<nn::Linear>(width, width)));
    }
    Materialize(kCpu, /*seed=*/1);
  }

 protected:
  Tensor Forward(const Tensor& x) override {
    Tensor y = x;
    for (auto& layer : layers_) y = (*layer)(y);
    return y;
  }

 private:
  std::vector<std::unique_ptr<Child<Layer>>> layers_;
};

// When each gradient is ready, from the beginning of backward.
class ReadyTimes : public BackwardObserver {
 public:
  void OnBegin(const BackwardPlan&) override { begin_ = Clock::now(); }
  void OnLeafReady(Leaf& leaf) override {
    times[leaf.name()].push_back(Milliseconds(Clock::now() - begin_));
  }
  std::map<std::string, std::vector<double>> times;

 private:
  Clock::time_point begin_;
};

struct Settings {
  int64_t layers, width, batch, steps;
  double first_mib, mib;
  bool ordered;
};

class Benchmark {
 public:
  Benchmark(ProcessGroup& group, const Settings& s)
      : group_(group),
        settings_(s),
        model_(s.layers, s.width),
        sgd_(model_.Parameters()),
        state_(kCpu, /*seed=*/1),
        x_(Normal({s.batch, s.width}, 1, StrCat("x", group.rank()))),
        root_(Normal({s.batch, s.width},
                     1.0 / static_cast<double>(s.batch * s.width * group.size()),
                     StrCat("root", group.rank()))) {}

  Json Run() {
    // A reducer must sum the gradients of each update, so steps without communication come first.
    WarmUpWith(nullptr);
    for (int64_t i = 0; i < settings_.steps; ++i) StepAlone();
    WarmUpWith(&group_);
    MeasureSteps();
    MeasureBuckets();
    return Result();
  }

 private:
  static ReducerOptions Options(const Settings& s) {
    ReducerOptions options;
    options.first_bucket_bytes = static_cast<int64_t>(s.first_mib * (1 << 20));
    options.bucket_bytes = static_cast<int64_t>(s.mib * (1 << 20));
    if (s.ordered) options.sum = GradientSum::kOrdered;
    return options;
  }

  // Without a group, buckets are filled but not sent.
  void WarmUpWith(ProcessGroup* group) {
    reducer_.reset();
    reducer_.emplace(group, model_.Parameters(), Options(settings_));
    for (int i = 0; i < 3; ++i) Step();
  }

  void Together() { group_.Barrier()->Synchronize(); }

  double OfAll(double ms, ReduceOp op) {
    const Tensor t = Tensor::Full({1}, ms, DType::kF64);
    group_.AllReduce(t, op)->Synchronize();
    return t.Item();
  }
  double Slowest(double ms) { return OfAll(ms, ReduceOp::kMax); }
  double Mean(double ms) { return OfAll(ms, ReduceOp::kSum) / group_.size(); }

  void Update() {
    sgd_.Step(state_);
    sgd_.ZeroGrad();
  }

  double Step() {
    Together();
    const auto begin = Clock::now();
    const auto training = sgd_.BeginStep(state_, ++steps_, 1e-6);
    Backward(model_(x_), root_);
    Update();
    return Milliseconds(Clock::now() - begin);
  }

  // Times a step without communication, and its parts.
  void StepAlone() {
    BackwardOptions options;
    options.observers = {&ready_};
    Together();
    const double before = ProcessorMilliseconds();
    const auto begin = Clock::now();
    const auto training = sgd_.BeginStep(state_, ++steps_, 1e-6);
    const Tensor y = model_(x_);
    const auto middle = Clock::now();
    Backward(y, root_, options);
    const auto end = Clock::now();
    Update();
    const auto last = Clock::now();
    forward_.push_back(Milliseconds(middle - begin));
    backward_.push_back(Milliseconds(end - middle));
    update_.push_back(Milliseconds(last - end));
    alone_.push_back(Slowest(Milliseconds(last - begin)));
    computed_ += ProcessorMilliseconds() - before;
    took_ += Milliseconds(last - begin);
  }

  void MeasureBuckets() {
    const auto plan = std::make_shared<const FixedOrderPlan>(
        PlanFixedOrder(AssignSubtrees(group_.size(), group_.size())));
    BucketSum ordered = OrderedSum(plan);
    const BucketHook fast = LibrarySum();
    for (const Bucket& bucket : reducer_->buckets()) {
      const Tensor t = Normal({bucket.numel}, 1e-3, StrCat("bucket", group_.rank()));
      std::vector<double> ms;
      for (int64_t i = 0; i < settings_.steps; ++i) {
        Together();
        const auto begin = Clock::now();
        const auto works =
            settings_.ordered ? ordered(group_, std::span(&t, 1), "") : fast(group_, t, "");
        for (const WorkPtr& work : works) work->Synchronize();
        ms.push_back(Milliseconds(Clock::now() - begin));
      }
      sums_.push_back(Slowest(Median(ms)));
      bytes_ += t.bytes();
    }
  }

  void MeasureSteps() {
    for (int64_t i = 0; i < settings_.steps; ++i) {
      step_.push_back(Slowest(Step()));
      added_.push_back(step_.back() - alone_[static_cast<size_t>(i)]);
      const CommunicationTimes& times = reducer_->times();
      exposed_.push_back(Mean(times.exposed_ms));
      overlapped_.push_back(Mean(times.overlapped_ms));
      communication_.push_back(Mean(times.communication_ms));
    }
  }

  // When a bucket's last gradient is ready, from the beginning of backward.
  double ReadyTime(int64_t bucket) {
    double last = 0;
    for (const std::string& name : reducer_->NamesIn(bucket)) {
      last = std::max(last, Median(ready_.times.at(name)));
    }
    return Slowest(last);
  }

  Json Result() {
    double end = 0, all = 0;
    for (size_t b = 0; b < sums_.size(); ++b) {
      end = std::max(end, ReadyTime(static_cast<int64_t>(b))) + sums_[b];
      all += sums_[b];
    }
    const double backward = Slowest(Median(backward_)), alone = Median(alone_);
    const double best = alone + std::max(0.0, end - backward), step = Median(step_);
    return {{"buckets", sums_.size()},
            {"bytes", bytes_},
            {"forward_ms", Slowest(Median(forward_))},
            {"backward_ms", backward},
            {"update_ms", Slowest(Median(update_))},
            {"alone_ms", alone},
            // The smallest share of a core that any rank got.
            {"processor_share", -Slowest(-computed_ / took_)},
            {"sums_alone_ms", all},
            {"serial_ms", alone + all},
            {"best_ms", best},
            {"step_ms", step},
            {"added_ms", Median(added_)},
            {"step_over_best", step / best},
            {"communication_ms", Median(communication_)},
            {"overlapped_ms", Median(overlapped_)},
            {"exposed_ms", Median(exposed_)}};
  }

  ProcessGroup& group_;
  const Settings settings_;
  Layers model_;
  optim::Sgd sgd_;
  std::optional<Reducer> reducer_;
  StepState state_;
  const Tensor x_, root_;
  int64_t steps_ = 0, bytes_ = 0;
  ReadyTimes ready_;
  // Per step.
  std::vector<double> forward_, backward_, update_, alone_;
  std::vector<double> step_, added_, exposed_, overlapped_, communication_;
  double computed_ = 0, took_ = 0;  // in steps alone
  std::vector<double> sums_;        // of each bucket
};

int Main(int argc, char** argv) {
  SetNumThreads(1);
  const Settings settings{std::atoll(argv[1]),
                          std::atoll(argv[2]),
                          std::atoll(argv[3]),
                          std::atoll(argv[4]),
                          std::atof(argv[5]),
                          std::atof(argv[6]),
                          argc > 7 && std::string(argv[7]) == "ordered"};
  World world(ReadRendezvous());
  const auto group = world.Group();
  const auto result = Benchmark(*group, settings).Run();
  if (world.rank() == 0) std::cout << result.dump() << std::endl;
  return 0;
}

}  // namespace
}  // namespace lockstep::dist

int main(int argc, char** argv) {
  if (argc < 7 || argc > 8) {
    std::cerr << "overlap LAYERS WIDTH BATCH STEPS FIRST_BUCKET_MIB BUCKET_MIB [SUM]\n";
    return 2;
  }
  try {
    return lockstep::dist::Main(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}
