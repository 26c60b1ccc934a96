#include <algorithm>

#include "core/autograd/node.h"
#include "dist/tensor/parallel_linear.h"
#include "dist/tensor/vocabulary.h"
#include "kernels/linear/linear.h"
#include "kernels/linear_cross_entropy/linear_cross_entropy.h"
#include "kernels/matrix.h"

namespace lockstep::dist {
namespace {

// The loss of the rows of a whole sequence, chunk by chunk.
class ChunkedLoss {
 public:
  ChunkedLoss(const TensorRanks& ranks, const Tensor& x, const Tensor& weight, int64_t size,
              const Tensor& targets, int64_t ignore_index, double softcap, double z_loss)
      : ranks_(ranks),
        size_(size),
        most_(ranks.VocabularyPart(size)),
        x_(x),
        targets_(targets),
        ignore_index_(ignore_index),
        softcap_(softcap),
        z_loss_(z_loss),
        wide_(AccumulationDType(x.dtype())),
        stream_(CurrentStream(x.device())),
        losses_(Empty({x.dim(0)})) {
    for (int64_t j = 0; j < ranks.own(); ++j) {
      weights_.push_back(VocabularyRowsOf(weight, most_, j));
    }
  }

  // The gradients of the sum of the losses; where they are undefined none are computed. dx [rows,
  // C] and dweight, both wide: on each rank the sum of its own parts.
  void WantGradients(const Tensor& dx, const Tensor& dweight) {
    dx_ = dx;
    dweight_ = dweight;
  }

  Tensor Run(int64_t chunk_rows) {
    const int64_t rows = x_.dim(0);
    const int64_t chunks = chunk_rows == 0 ? 1 : (rows + chunk_rows - 1) / chunk_rows;
    const int64_t most = (rows + chunks - 1) / chunks;
    for (int64_t begin = 0; begin < rows; begin += most) {
      RunChunk(begin, std::min(rows, begin + most));
    }
    return losses_;
  }

 private:
  // What is known of the rows of a chunk for a run of neighbouring parts of the vocabulary: not
  // rounded to f32 before it is joined, since an error in a log-sum-exp is one in every gradient.
  struct Joint {
    Tensor losses, log_sum_exp;  // f64 [rows]
  };

  Tensor Empty(const Shape& shape) const { return Tensor::Empty(shape, wide_, x_.device()); }
  // The losses and the log-sum-exps of rows.
  Tensor EmptyPair(int64_t rows) const {
    return Tensor::Empty({2, rows}, DType::kF64, x_.device());
  }
  ClassPart PartOf(int64_t j) const { return {.first = (ranks_.first() + j) * most_, .of = size_}; }

  // Joins n neighbours of `most` classes each, but perhaps the last, in adjacent pairs.
  void Join(std::vector<Joint>& all, int64_t first_class, int64_t most, const Tensor& targets) {
    for (int64_t step = 1; step < std::ssize(all); step *= 2) {
      for (int64_t i = 0; i + step < std::ssize(all); i += 2 * step) {
        const int64_t end = std::min<int64_t>(i + 2 * step, std::ssize(all));
        const Joint &a = all[static_cast<size_t>(i)], &b = all[static_cast<size_t>(i + step)];
        cross_entropy_join(stream_, {.losses = a.losses,
                                     .log_sum_exp = a.log_sum_exp,
                                     .other_losses = b.losses,
                                     .other_log_sum_exp = b.log_sum_exp,
                                     .targets = targets,
                                     .ignore_index = ignore_index_,
                                     .begin = first_class + i * most,
                                     .middle = first_class + (i + step) * most,
                                     .end = std::min(size_, first_class + end * most)});
      }
    }
  }

  // The losses and log-sum-exps of all classes; keeps the logits of this rank's.
  Joint Forward(const Tensor& x, const Tensor& targets) {
    const int64_t rows = x.dim(0), own = ranks_.own();
    raw_logits_.clear();
    logits_.clear();
    std::vector<Joint> parts;
    for (int64_t j = 0; j < own; ++j) {
      const Tensor& weight = weights_[static_cast<size_t>(j)];
      raw_logits_.push_back(Tensor::Empty({rows, weight.dim(0)}, x.dtype(), x.device()));
      linear_forward(stream_, {.x = x, .weight = weight, .y = raw_logits_.back()});
      logits_.push_back(SoftcapForward(stream_, raw_logits_.back(), softcap_));
      const Tensor pair = EmptyPair(rows);
      parts.push_back({pair.Slice(0, 0, 1).View({rows}), pair.Slice(0, 1, 2).View({rows})});
      cross_entropy_forward(stream_, {.logits = logits_.back(),
                                      .targets = targets,
                                      .ignore_index = ignore_index_,
                                      .part = PartOf(j),
                                      .losses = parts.back().losses,
                                      .log_sum_exp = parts.back().log_sum_exp});
    }
    Join(parts, ranks_.first() * most_, most_, targets);
    if (ranks_.size() == 1) return parts[0];
    const Tensor mine = EmptyPair(rows);
    mine.Slice(0, 0, 1).View({rows}).CopyFrom(parts[0].losses);
    mine.Slice(0, 1, 2).View({rows}).CopyFrom(parts[0].log_sum_exp);
    const Tensor all =
        ranks_.Gather(mine, "losses of parts of a vocabulary").View({2 * ranks_.size(), rows});
    std::vector<Joint> of_ranks;
    for (int64_t r = 0; r < 2 * ranks_.size(); r += 2) {
      of_ranks.push_back(
          {all.Slice(0, r, r + 1).View({rows}), all.Slice(0, r + 1, r + 2).View({rows})});
    }
    Join(of_ranks, 0, own * most_, targets);
    return of_ranks[0];
  }

  void RunChunk(int64_t begin, int64_t end) {
    const Tensor x = x_.Slice(0, begin, end), targets = targets_.Slice(0, begin, end);
    const Joint all = Forward(x, targets);
    const Tensor losses = losses_.Slice(0, begin, end), log_sum_exp = all.log_sum_exp.To(wide_);
    losses.CopyFrom(all.losses);
    AddZLoss(stream_, {losses, log_sum_exp, targets, ignore_index_, z_loss_});
    if (!dx_.defined() && !dweight_.defined()) return;
    const Tensor one = Tensor::Full({1}, 1, wide_, x.device());
    const Tensor sum = ranks_.SumOwn([&](int64_t j) {
      const Tensor& dlogits = logits_[static_cast<size_t>(j)];
      cross_entropy_backward(stream_, {.logits = dlogits,
                                       .targets = targets,
                                       .log_sum_exp = log_sum_exp,
                                       .ignore_index = ignore_index_,
                                       .part = PartOf(j),
                                       .upstream = one,
                                       .scale = one,
                                       .dlogits = dlogits,
                                       .z_loss = z_loss_});
      SoftcapBackward(stream_, raw_logits_[static_cast<size_t>(j)], softcap_, dlogits);
      const Tensor& weight = weights_[static_cast<size_t>(j)];
      if (dweight_.defined()) {
        linear_backward(stream_, {.x = x,
                                  .weight = weight,
                                  .dy = dlogits,
                                  .dweight = {VocabularyRowsOf(dweight_, most_, j), begin > 0}});
      }
      if (dx_.defined()) return PartialProduct(dlogits, weight, /*transpose_b=*/false, wide_);
      const Tensor none = Empty(x.shape());
      none.Fill(0);
      return none;
    });
    if (dx_.defined()) dx_.Slice(0, begin, end).CopyFrom(sum);
  }

  const TensorRanks& ranks_;
  const int64_t size_, most_;  // classes: of all, and of a virtual part
  const Tensor x_, targets_;
  // For each of the own parts; the raw logits are those before the soft cap.
  std::vector<Tensor> weights_, raw_logits_, logits_;
  const int64_t ignore_index_;
  const double softcap_, z_loss_;
  const DType wide_;
  const Stream stream_;
  const Tensor losses_;
  Tensor dx_, dweight_;
};

void Check(const TensorRanks& ranks, const Tensor& x, const Tensor& weight, int64_t size,
           const Tensor& targets, int64_t chunk_rows) {
  const int64_t ranks_of_sequence = GradEnabled() ? ranks.size() : 1;
  LS_CHECK(x.defined() && IsFloating(x.dtype()) && x.ndim() == 3,
           "vocabulary_cross_entropy: x must be a floating tensor [B, T, C], got ", x.Describe());
  LS_CHECK(weight.defined() && weight.ndim() == 2 && weight.dim(1) == x.dim(-1) &&
               ranks.VocabularyPart(size) * (ranks.parts() - 1) < size &&
               weight.dim(0) == ranks.OwnVocabulary(size) && weight.dtype() == x.dtype() &&
               weight.device() == x.device(),
           "vocabulary_cross_entropy: of ", size, " classes in ", ranks.parts(),
           " parts, none of them empty, this rank's part of the weight must be ", x.dtype(), "[",
           ranks.OwnVocabulary(size), ", ", x.dim(-1), "] on ", x.device(), ", got ",
           weight.Describe());
  LS_CHECK(targets.defined() &&
               (targets.dtype() == DType::kI32 || targets.dtype() == DType::kI64) &&
               targets.shape() == Shape({x.dim(0), x.dim(1) * ranks_of_sequence}) &&
               targets.device() == x.device(),
           "vocabulary_cross_entropy: targets must be i32 or i64 [", x.dim(0), ", ",
           x.dim(1) * ranks_of_sequence, "] on ", x.device(), ", got ", targets.Describe());
  LS_CHECK(chunk_rows >= 0,
           "vocabulary_cross_entropy: chunk_rows must be at least 0 (0: no limit), got ",
           chunk_rows);
}

}  // namespace

Tensor VocabularyCrossEntropy(const TensorRanksPtr& ranks, const Tensor& x, const Tensor& weight,
                              int64_t size, const Tensor& targets, int64_t chunk_rows,
                              int64_t ignore_index, double softcap, double z_loss) {
  Check(*ranks, x, weight, size, targets, chunk_rows);
  const Device device = x.device();
  const DType wide = AccumulationDType(x.dtype());
  const Tensor part = x.Detach().Contiguous();
  const Tensor whole = GradEnabled() ? ranks->GatherSequence(part) : part;
  const Tensor flat = targets.Detach().Contiguous().View({targets.numel()});
  ChunkedLoss loss(*ranks, AsMatrix(whole), weight.Detach().Contiguous(), size, flat, ignore_index,
                   softcap, z_loss);
  const bool record = NeedsGrad({&x, &weight});
  Tensor dx, dweight;
  if (record && x.requires_grad()) dx = Tensor::Empty(AsMatrix(whole).shape(), wide, device);
  if (record && weight.requires_grad()) dweight = Tensor::Empty(weight.shape(), wide, device);
  loss.WantGradients(dx, dweight);
  const Tensor losses = loss.Run(chunk_rows);
  auto [total, scale] = ReduceLosses(losses, flat, Reduction::kSum, ignore_index);
  if (record && dx.defined()) dx = ranks->ScatterSum(dx.View(whole.shape()), x.dtype());
  ops::RecordGradients(x, weight, dx, dweight, scale, &total);
  return total;
}

}  // namespace lockstep::dist
