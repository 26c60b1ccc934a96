#include "dist/tensor/vocabulary.h"

#include "core/autograd/node.h"
#include "core/autograd/saved_tensor.h"
#include "kernels/binary/binary.h"
#include "kernels/checks.h"
#include "kernels/embedding/embedding.h"
#include "kernels/linear_cross_entropy/linear_cross_entropy.h"
#include "kernels/token_position_embedding/token_position_embedding.h"

namespace lockstep::dist {
namespace {

// This rank's rows of a table of `size`.
TablePart PartOf(const TensorRanks& ranks, int64_t size) {
  return {.first = ranks.first() * ranks.VocabularyPart(size), .of = size};
}

// The bytes of x as integers, whose sums are exact: where only one rank's are not 0, they are its.
Tensor AsIntegers(const Tensor& x, int64_t parts) {
  const DType dtype = x.bytes() % (4 * parts) == 0 ? DType::kI32 : DType::kU8;
  const int64_t size = SizeOf(dtype);
  return Tensor::FromStorage(x.storage(), dtype, {x.bytes() / size},
                             x.offset() * SizeOf(x.dtype()) / size);
}

// The rows of ids [B, T] in a table that is split across ranks: for this rank's part of the
// sequence or, under NoGrad, for all of it.
Tensor LookUp(const TensorRanks& ranks, const Tensor& ids, const Tensor& weight, TablePart part) {
  const int64_t size = ranks.size(), batch = ids.dim(0), c = weight.dim(1);
  const Stream stream = CurrentStream(weight.device());
  const auto rows = [&](const Shape& shape) {
    return Tensor::Empty(shape, weight.dtype(), weight.device());
  };
  const char* what = "the rows of an embedding";
  if (!GradEnabled()) {
    const Tensor y = rows({batch, ids.dim(1), c});
    embedding_forward(stream, ids.Contiguous(), weight, part, y);
    ranks.group()->AllReduce(AsIntegers(y, 1), ReduceOp::kSum, what)->Wait();
    return y;
  }
  LS_CHECK(ids.dim(1) % size == 0, "sequence parallelism: a sequence of ", ids.dim(1),
           " tokens does not divide into ", size, " parts: use a multiple, or NoGrad");
  const int64_t t = ids.dim(1) / size;
  const Tensor by_rank = ids.View({batch, size, t}).Transpose(0, 1).Contiguous();
  const Tensor all = rows({size, batch, t, c}), y = rows({batch, t, c});
  embedding_forward(stream, by_rank, weight, part, all);
  ranks.group()
      ->ReduceScatter(AsIntegers(all, size), AsIntegers(y, 1), ReduceOp::kSum, what)
      ->Wait();
  return y;
}

// Each rank sums the rows of its part of the sequence.
void WritePositions(const TensorRanks& ranks, const Tensor& dy, int64_t first_position,
                    const GradTarget& to) {
  const Tensor own =
      Tensor::Empty({dy.dim(1), dy.dim(2)}, AccumulationDType(dy.dtype()), dy.device());
  token_position_embedding_backward(CurrentStream(dy.device()), dy, 0, own, /*accumulate=*/false);
  const int64_t t = ranks.size() * dy.dim(1), end = first_position + t;
  const Tensor all = ranks.Gather(own, "gradients of positions").View({t, dy.dim(2)});
  if (!to.accumulate) {
    to.tensor.Slice(0, 0, first_position).Fill(0);
    to.tensor.Slice(0, end, to.tensor.dim(0)).Fill(0);
  }
  GradTarget{to.tensor.Slice(0, first_position, end), to.accumulate}.Write(all);
}

// Saved are the ids and, where they are given, the positions.
void Backward(const TensorRanks& ranks, TablePart part, int64_t first_position,
              const SavedTensors& saved, Gradients& grads) {
  const Stream stream = CurrentStream(grads[0].device());
  const Tensor dy = grads[0].Contiguous(), at = saved[1];
  const bool sums_places = grads.needs(1) && at.defined();
  const Tensor whole = grads.needs(0) || sums_places ? ranks.GatherSequence(dy) : Tensor();
  if (const auto [to, accumulate] = grads.OpenAnyDType(0); to.defined()) {
    embedding_backward(stream, saved[0], whole, part, to, accumulate);
  }
  if (!grads.needs(1)) return;
  const GradTarget to = grads.OpenAnyDType(1);
  if (sums_places) {
    embedding_backward(stream, at, whole, {}, to.tensor, to.accumulate);
  } else {
    WritePositions(ranks, dy, first_position, to);
  }
}

}  // namespace

Tensor VocabularyRows(const TensorRanksPtr& ranks, const Tensor& ids, const Tensor& weight,
                      int64_t size, const Tensor& positions, int64_t first_position,
                      const Tensor& at) {
  if (ranks->size() == 1) {
    if (!positions.defined()) return ops::Embedding(ids, weight);
    return ops::TokenPositionEmbedding(ids, weight, positions, first_position, at);
  }
  LS_CHECK(ids.defined() && ids.ndim() == 2 &&
               (ids.dtype() == DType::kI32 || ids.dtype() == DType::kI64),
           "vocabulary_embedding: ids must be an i32 or i64 [B, T], got ", ids.Describe());
  const TablePart part = PartOf(*ranks, size);
  LS_CHECK(weight.defined() && weight.ndim() == 2 && IsFloating(weight.dtype()) &&
               weight.device() == ids.device() && weight.dim(0) == ranks->OwnVocabulary(size),
           "vocabulary_embedding: the weight must be a floating [", ranks->OwnVocabulary(size),
           ", C] on ", ids.device(), ", got ", weight.Describe());
  const Tensor index = ids.Contiguous();
  Tensor y = LookUp(*ranks, index, weight.Detach().Contiguous(), part);
  if (positions.defined()) {
    LS_CHECK(first_position >= 0 && first_position + ids.dim(1) <= positions.dim(0) &&
                 positions.dtype() == weight.dtype(),
             "vocabulary_embedding: a sequence of ", ids.dim(1), " tokens from position ",
             first_position, " does not fit the positions ", positions.Describe());
    const int64_t t = y.dim(1);
    const int64_t begin = GradEnabled() ? ranks->rank() * t : 0;
    Tensor rows = positions.Detach().Slice(0, first_position + begin, first_position + begin + t);
    if (at.defined()) {
      CheckPositions("vocabulary_embedding", at, ids.dim(0), ids.dim(1), ids.device(),
                     positions.dim(0));
      rows = ops::Embedding(at.Slice(1, begin, begin + t), positions.Detach());
    }
    y = ops::Add(y, rows);
  }
  RecordOp("vocabulary_embedding", {&weight, &positions}, {&y},
           {{index, "the ids of vocabulary_embedding"},
            {at.defined() ? at.Contiguous() : at, "the positions of vocabulary_embedding"}},
           [=](const SavedTensors& saved, Gradients& grads) {
             Backward(*ranks, part, first_position, saved, grads);
           });
  return y;
}

VocabularyEmbedding::VocabularyEmbedding(const nn::Embedding& replaced, TensorRanksPtr ranks)
    : Embedding(replaced.weight()), ranks_(std::move(ranks)) {}

Tensor VocabularyEmbedding::AddPositions(const Tensor& ids, const Tensor& positions,
                                         int64_t first_position, const Tensor& at) {
  return VocabularyRows(ranks_, ids, *weight(), num(), positions, first_position, at);
}

Tensor VocabularyEmbedding::Forward(const Tensor& ids) {
  return VocabularyRows(ranks_, ids, *weight(), num());
}

VocabularyHead::VocabularyHead(const nn::LmHead& replaced, TensorRanksPtr ranks)
    : ranks_(std::move(ranks)),
      loss_chunk_(replaced.loss_chunk()),
      softcap_(replaced.softcap()),
      z_loss_(replaced.z_loss()),
      weight_(replaced.weight()),
      tied_(replaced.tied()) {
  ShareParameter("weight", weight_);
}

Tensor VocabularyHead::Forward(const Tensor& x, const Tensor& targets) {
  const Tensor weight = tied_ ? tied_->value() : weight_->value();
  const int64_t size = weight_->logical_shape()[0];
  if (targets.defined()) {
    return VocabularyCrossEntropy(ranks_, x, weight, size, targets, loss_chunk_, -1, softcap_,
                                  GradEnabled() ? z_loss_ : 0);
  }
  return VocabularyLogits(*ranks_, x, weight, size, softcap_);
}

Tensor VocabularyLogits(const TensorRanks& ranks, const Tensor& x, const Tensor& weight,
                        int64_t size, double softcap) {
  LS_CHECK(!GradEnabled() || ranks.size() == 1,
           "a tensor-parallel head brings logits together only under NoGrad: give it targets, "
           "whose loss it computes without");
  const Tensor logits = ops::CappedLogits(x, weight, softcap);
  if (ranks.size() == 1) return logits;
  const Tensor by_class = logits.Permute({2, 0, 1});  // [this rank's, B, T]
  return ranks.GatherVocabulary(by_class, size, "logits").Permute({1, 2, 0}).Contiguous();
}

}  // namespace lockstep::dist
