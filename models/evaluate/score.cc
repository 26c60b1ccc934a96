#include "models/evaluate/score.h"

#include <algorithm>
#include <numeric>

#include "core/autograd/grad_mode.h"
#include "kernels/index/index.h"
#include "kernels/reduce/reduce.h"
#include "kernels/softmax_cross_entropy/softmax_cross_entropy.h"

namespace lockstep::models {
namespace {

constexpr int64_t kRoundsBetweenQuestions = 8;  // since ranks wait for each other to answer
constexpr int64_t kLogits = int64_t{1} << 24;   // numbers at once

// Requests that are computed together.
struct ScoreBatch {
  std::vector<size_t> requests;
  std::vector<size_t> row_of;  // for each of them, which row is its input
  std::vector<size_t> rows;    // the request whose input each row is
};

std::span<const int32_t> InputOf(const ScoreRequest& request) {
  return std::span(request.ids).first(request.ids.size() - 1);
}

std::vector<ScoreBatch> MakeBatches(std::span<const ScoreRequest> requests, int64_t batch_size) {
  std::vector<size_t> order(requests.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) {
    const auto &x = requests[a].ids, &y = requests[b].ids;
    return x.size() != y.size() ? x.size() > y.size() : x < y;
  });
  std::vector<ScoreBatch> batches;
  for (const size_t i : order) {
    const bool is_new =
        batches.empty() ||
        !std::ranges::equal(InputOf(requests[i]), InputOf(requests[batches.back().rows.back()]));
    if (batches.empty() || (is_new && std::ssize(batches.back().rows) == batch_size)) {
      batches.emplace_back();
    }
    ScoreBatch& batch = batches.back();
    if (is_new) batch.rows.push_back(i);
    batch.requests.push_back(i);
    batch.row_of.push_back(batch.rows.size() - 1);
  }
  return batches;
}

// Rows of [B, T, C] at `index` of B T: [1, n, C].
Tensor RowsAt(const Tensor& x, const Tensor& index) {
  const Tensor rows = x.Contiguous().View({x.dim(0) * x.dim(1), x.dim(2)});
  return ops::IndexSelect(rows, 0, index).Unsqueeze(0);
}

class Scorer {
 public:
  Scorer(Gpt& model, std::span<const ScoreRequest> requests)
      : model_(model),
        requests_(requests),
        device_(model.Parameters().front()->device()),
        chunk_(std::max<int64_t>(1, kLogits / model.config().vocab_size)) {}

  // How many times a batch calls the head, for so many logits at once.
  int64_t HeadCalls(const ScoreBatch& batch) const {
    int64_t positions = 0;
    for (const size_t r : batch.requests) positions += requests_[r].scored;
    return (positions + chunk_ - 1) / chunk_;
  }

  // Writes a score into two numbers of `scores` for each request of the batch, if this rank has the
  // head. `head_calls`: at least so many are made.
  void Run(const ScoreBatch& batch, int64_t head_calls, std::vector<double>* scores) {
    const int64_t cols = std::ssize(InputOf(requests_[batch.rows[0]]));
    std::vector<int32_t> ids, targets, index;
    for (const size_t row : batch.rows) {
      const std::span<const int32_t> input = InputOf(requests_[row]);
      ids.insert(ids.end(), input.begin(), input.end());
      ids.resize(ids.size() + static_cast<size_t>(cols - std::ssize(input)));  // nobody sees it
    }
    bool wants_greedy = false;
    for (size_t i = 0; i < batch.requests.size(); ++i) {
      const ScoreRequest& request = requests_[batch.requests[i]];
      const int64_t n = std::ssize(request.ids);
      for (int64_t at = n - request.scored; at < n; ++at) {
        targets.push_back(request.ids[static_cast<size_t>(at)]);
        index.push_back(
            static_cast<int32_t>(static_cast<int64_t>(batch.row_of[i]) * cols + at - 1));
      }
      wants_greedy |= request.wants_greedy;
    }
    const nn::ResidualStream stream =
        model_.Stream(Tensor::FromVector(ids, {std::ssize(batch.rows), cols}, device_));
    if (!stream.x.defined()) return;
    std::vector<float> losses;
    std::vector<int64_t> likeliest;
    Head(stream, index, targets, wants_greedy, head_calls, &losses, &likeliest);
    size_t at = 0;
    for (const size_t r : batch.requests) {
      double sum = 0;
      bool greedy = requests_[r].wants_greedy;
      for (int64_t t = 0; t < requests_[r].scored; ++t, ++at) {
        sum -= losses[at];
        greedy = greedy && likeliest[at] == targets[at];
      }
      (*scores)[2 * r] = sum;
      (*scores)[2 * r + 1] = greedy;
    }
  }

 private:
  // Of the positions `index`: the loss of their targets, and the likeliest token.
  void Head(nn::ResidualStream stream, const std::vector<int32_t>& index,
            const std::vector<int32_t>& targets, bool wants_greedy, int64_t calls,
            std::vector<float>* losses, std::vector<int64_t>* likeliest) {
    const int64_t n = std::ssize(index), own_calls = (n + chunk_ - 1) / chunk_;
    const Tensor at = Tensor::FromVector(index, {n}, device_);
    const Tensor target = Tensor::FromVector(targets, {1, n}, device_);
    for (Tensor* t : {&stream.x, &stream.open.value}) {
      if (t->defined()) *t = RowsAt(*t, at);
    }
    for (int64_t call = 0; call < std::max(calls, own_calls); ++call) {
      const int64_t begin = std::min(call, own_calls - 1) * chunk_;
      const int64_t end = std::min(n, begin + chunk_);
      const Tensor logits =
          model_.head()(Part(stream, begin, end), Tensor()).To(DType::kF32).Contiguous();
      if (call >= own_calls) continue;  // again, for others' forwards
      Append(ops::SoftmaxCrossEntropy(logits, target.Slice(1, begin, end).Contiguous(),
                                      Reduction::kNone),
             losses);
      if (wants_greedy) Append(ops::ArgMax(logits, {2}), likeliest);
    }
  }

  static nn::ResidualStream Part(const nn::ResidualStream& stream, int64_t begin, int64_t end) {
    nn::ResidualStream part = stream;
    for (Tensor* t : {&part.x, &part.open.value}) {
      if (t->defined()) *t = t->Slice(1, begin, end).Contiguous();
    }
    return part;
  }

  template <class T>
  static void Append(const Tensor& from, std::vector<T>* to) {
    const std::vector<T> values = from.ToVector<T>();
    to->insert(to->end(), values.begin(), values.end());
  }

  Gpt& model_;
  const std::span<const ScoreRequest> requests_;
  const Device device_;
  const int64_t chunk_;  // positions whose logits are in memory at once
};

}  // namespace

std::vector<Score> ScoreRequests(Gpt& model, std::span<const ScoreRequest> requests,
                                 const ScoreOptions& options) {
  LS_CHECK(options.batch_size > 0, "batch_size must be at least 1, got ", options.batch_size);
  const NoGrad no_grad;
  const std::vector<ScoreBatch> batches = MakeBatches(requests, options.batch_size);
  const Evaluators& ranks = options.evaluators;
  const int64_t n = std::ssize(batches), rounds = (n + ranks.count - 1) / ranks.count;
  Scorer scorer(model, requests);
  std::vector<double> scores(2 * requests.size());
  for (int64_t round = 0; round < rounds; ++round) {
    if (round % kRoundsBetweenQuestions == 0 && options.stop && options.stop()) {
      throw EvaluationStopped();
    }
    const auto batch_of = [&](int64_t evaluator) -> const ScoreBatch& {
      return batches[static_cast<size_t>((round * ranks.count + evaluator) % n)];
    };
    // Each of its calls may gather the head's weights.
    int64_t head_calls = 0;
    for (int64_t e = 0; ranks.meet_in_forward && e < ranks.count; ++e) {
      head_calls = std::max(head_calls, scorer.HeadCalls(batch_of(e)));
    }
    if (round * ranks.count + ranks.own < n) {
      scorer.Run(batch_of(ranks.own), head_calls, &scores);
    } else if (ranks.meet_in_forward) {  // again, for the others, and it does not count
      std::vector<double> unused(scores.size());
      scorer.Run(batch_of(ranks.own), head_calls, &unused);
    }
    if (options.progress) options.progress(std::min(n, (round + 1) * ranks.count), n);
  }
  if (ranks.sum) ranks.sum(&scores);
  std::vector<Score> results;
  for (size_t i = 0; i < requests.size(); ++i) {
    results.push_back({scores[2 * i], scores[2 * i + 1] != 0});
  }
  return results;
}

}  // namespace lockstep::models
