// What batch_norm's OpCase cannot check: statistics shared by processes, and what must not change.
#include "kernels/batch_norm/batch_norm.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>

#include "core/autograd/engine.h"
#include "core/philox.h"

namespace lockstep {
namespace {

Tensor Noise(const Shape& shape, uint64_t stream, DType dtype = DType::kF32) {
  std::vector<double> values(static_cast<size_t>(shape.numel()));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = 4.0 * ToUniform(Philox(3).At(stream, i)) - 1;
  }
  return Tensor::FromVector(values, shape).To(dtype);
}

std::vector<uint8_t> Bits(const Tensor& t) {
  const Tensor host = t.Detach().Contiguous();
  std::vector<uint8_t> bits(static_cast<size_t>(host.bytes()));
  if (!bits.empty()) std::memcpy(bits.data(), host.raw_data(), bits.size());
  return bits;
}

// Ranks that are threads of this process.
class Threads {
 public:
  explicit Threads(size_t ranks) : parts_(ranks) {}

  Tensor Gather(size_t rank, const Tensor& part) {
    std::unique_lock lock(mutex_);
    parts_[rank] = part.Clone();
    Wait(lock);
    const int64_t n = static_cast<int64_t>(parts_.size());
    const Tensor all = Tensor::Empty({n, part.dim(0), part.dim(1)}, part.dtype());
    for (int64_t r = 0; r < n; ++r) {
      all.Slice(0, r, r + 1).View(part.shape()).CopyFrom(parts_[static_cast<size_t>(r)]);
    }
    Wait(lock);
    return all;
  }

 private:
  void Wait(std::unique_lock<std::mutex>& lock) {
    const int64_t round = round_;
    if (++waiting_ == parts_.size()) {
      waiting_ = 0;
      ++round_;
      changed_.notify_all();
    } else {
      changed_.wait(lock, [&] { return round_ != round; });
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Tensor> parts_;
  size_t waiting_ = 0;
  int64_t round_ = 0;
};

class Rank : public BatchNormExchange {
 public:
  Rank(Threads& threads, size_t rank) : threads_(threads), rank_(rank) {}
  Tensor Gather(const Tensor& part) override { return threads_.Gather(rank_, part); }

 private:
  Threads& threads_;
  size_t rank_;
};

struct Result {
  Tensor y, dx, dweight, dbias, mean, var;
};

Result RunLayer(const Tensor& x, const Tensor& dy, std::shared_ptr<BatchNormExchange> exchange) {
  const int64_t c = x.dim(1);
  Tensor input = x.Clone(), weight = Noise({c}, 10), bias = Noise({c}, 11);
  for (Tensor* t : {&input, &weight, &bias}) t->SetRequiresGrad();
  const BatchNormRunning running = {
      Tensor::Zeros({c}, DType::kF32), Tensor::Full({c}, 1, DType::kF32), {}};
  const Tensor y =
      ops::BatchNorm(input, weight, bias, running,
                     {.training = true, .eps = 1e-5, .momentum = 0.1, .exchange = exchange});
  Backward(y, dy);
  return {y, input.grad(), weight.grad(), bias.grad(), running.mean, running.var};
}

std::vector<Result> RunOnRanks(const std::vector<Tensor>& x, const std::vector<Tensor>& dy) {
  Threads group(x.size());
  std::vector<Result> results(x.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < x.size(); ++r) {
    threads.emplace_back(
        [&, r] { results[r] = RunLayer(x[r], dy[r], std::make_shared<Rank>(group, r)); });
  }
  for (std::thread& t : threads) t.join();
  return results;
}

// Sync batch norm over ranks of 2^n samples each has the bits of one process, and the gradients of
// weight and bias add up to that process's.
TEST(BatchNorm, RanksComputeWhatOneProcessDoes) {
  for (const auto& [ranks, samples] :
       std::vector<std::pair<int64_t, int64_t>>{{1, 4}, {2, 4}, {3, 2}, {4, 1}, {5, 8}}) {
    const Shape shape = {ranks * samples, 37, 5, 3};
    const Tensor x = Noise(shape, 1), dy = Noise(shape, 2);
    const Result whole = RunLayer(x, dy, nullptr);
    std::vector<Tensor> xs, dys;
    for (int64_t r = 0; r < ranks; ++r) {
      xs.push_back(x.Slice(0, r * samples, (r + 1) * samples));
      dys.push_back(dy.Slice(0, r * samples, (r + 1) * samples).Contiguous());
    }
    const std::vector<Result> parts = RunOnRanks(xs, dys);
    for (int64_t r = 0; r < ranks; ++r) {
      const Result& part = parts[static_cast<size_t>(r)];
      const auto mine = [&](const Tensor& t) {
        return t.Detach().Slice(0, r * samples, (r + 1) * samples);
      };
      EXPECT_EQ(Bits(part.y), Bits(mine(whole.y))) << "rank " << r << " of " << ranks;
      EXPECT_EQ(Bits(part.dx), Bits(mine(whole.dx))) << "rank " << r << " of " << ranks;
      EXPECT_EQ(Bits(part.mean), Bits(whole.mean));
      EXPECT_EQ(Bits(part.var), Bits(whole.var));
    }
    for (const auto member : {&Result::dweight, &Result::dbias}) {
      const std::vector<float> want = (whole.*member).ToVector<float>();
      std::vector<double> sum(want.size());
      for (const Result& part : parts) {
        const std::vector<float> own = (part.*member).ToVector<float>();
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += own[i];
      }
      for (size_t i = 0; i < sum.size(); ++i) EXPECT_NEAR(sum[i], want[i], 1e-3);
    }
  }
}

// Unequal and even empty parts: the statistics are those of all values.
TEST(BatchNorm, RanksMayHaveUnequalBatches) {
  const Tensor x = Noise({7, 3, 4}, 1), dy = Noise({7, 3, 4}, 2);
  const Result whole = RunLayer(x, dy, nullptr);
  const std::vector<int64_t> cuts = {0, 1, 1, 6, 7};
  std::vector<Tensor> xs, dys;
  for (size_t r = 0; r + 1 < cuts.size(); ++r) {
    xs.push_back(x.Slice(0, cuts[r], cuts[r + 1]));
    dys.push_back(dy.Slice(0, cuts[r], cuts[r + 1]).Contiguous());
  }
  const std::vector<Result> parts = RunOnRanks(xs, dys);
  for (size_t r = 0; r < parts.size(); ++r) {
    const auto close = [&](const Tensor& got, const Tensor& want) {
      EXPECT_THAT(got.ToVector<float>(),
                  testing::Pointwise(testing::FloatNear(2e-6f), want.ToVector<float>()));
    };
    close(parts[r].y, whole.y.Detach().Slice(0, cuts[r], cuts[r + 1]));
    close(parts[r].dx, whole.dx.Slice(0, cuts[r], cuts[r + 1]));
    close(parts[r].mean, whole.mean);
    close(parts[r].var, whole.var);
  }
}

TEST(BatchNorm, AnExchangeThatReturnsSomethingElseIsRefused) {
  struct Broken : BatchNormExchange {
    Tensor Gather(const Tensor& part) override { return part; }
  };
  try {
    RunLayer(Noise({2, 3, 2}, 1), Noise({2, 3, 2}, 2), std::make_shared<Broken>());
    ADD_FAILURE() << "nothing was thrown";
  } catch (const ArgumentError& e) {
    EXPECT_THAT(e.what(), testing::HasSubstr("the exchange must gather f32[3, 3]"));
  }
}

TEST(BatchNorm, EvaluationLeavesTheRunningStatisticsAlone) {
  const BatchNormRunning running = {Noise({3}, 4), Tensor::Full({3}, 2, DType::kF32),
                                    Tensor::Zeros({}, DType::kI64)};
  const std::vector<uint8_t> mean = Bits(running.mean), var = Bits(running.var);
  ops::BatchNorm(Noise({4, 3}, 1), {}, {}, running, {});
  EXPECT_EQ(Bits(running.mean), mean);
  EXPECT_EQ(Bits(running.var), var);
  EXPECT_EQ(running.batches.Item(), 0);
}

// Another forward between a forward and its backward changes the running statistics, not gradients.
TEST(BatchNorm, BackwardDoesNotDependOnLaterBatches) {
  for (const bool training : {true, false}) {
    const BatchNormRunning running = {Noise({3}, 4), Tensor::Full({3}, 2, DType::kF32), {}};
    const BatchNormOptions options = {
        .training = training, .eps = 1e-5, .momentum = 0.1, .exchange = nullptr};
    const auto gradient = [&](bool again) {
      const BatchNormRunning own = {running.mean.Clone(), running.var.Clone(), {}};
      Tensor x = Noise({4, 3, 2}, 1);
      x.SetRequiresGrad();
      const Tensor y = ops::BatchNorm(x, {}, {}, own, options);
      if (again) {
        ops::BatchNorm(Noise({4, 3, 2}, 5), {}, {}, own,
                       {.training = true, .eps = 1e-5, .momentum = 0.9, .exchange = nullptr});
      }
      Backward(y, Noise({4, 3, 2}, 2));
      return Bits(x.grad());
    };
    EXPECT_EQ(gradient(true), gradient(false));
  }
}

}  // namespace
}  // namespace lockstep
