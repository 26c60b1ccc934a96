#include "dist/tensor/sequence.h"

#include "core/autograd/node.h"
#include "core/step_state.h"
#include "kernels/concat/concat.h"
#include "kernels/dropout/dropout.h"
#include "kernels/linear/linear.h"

namespace lockstep::dist {
namespace {

// Backward of FanOut. All sums go in one bundle.
void AddCopies(const TensorRanks& ranks, Gradients& grads) {
  const auto own = static_cast<size_t>(ranks.own());
  int64_t total = 0;
  for (size_t i = 0; i < grads.inputs(); ++i) {
    total += grads.needs(i) ? grads.spec(i).shape.numel() : 0;
  }
  const DType wide = grads[0].dtype();
  const Tensor bundle = Tensor::Empty({total}, wide, grads[0].device());
  int64_t at = 0;
  const auto next = [&](const Tensor& from, size_t i) {
    const int64_t begin = at;
    at += grads.spec(i).shape.numel();
    return from.Slice(0, begin, at);
  };
  for (size_t i = 0; i < grads.inputs(); ++i) {
    if (!grads.needs(i)) continue;
    const Tensor sum =
        ranks.SumOwn([&](int64_t j) { return grads[i * own + static_cast<size_t>(j)].Clone(); });
    next(bundle, i).CopyFrom(sum.View({sum.numel()}));
  }
  const Tensor sums = ranks.Sum(bundle, wide);
  at = 0;
  for (size_t i = 0; i < grads.inputs(); ++i) {
    if (!grads.needs(i)) continue;
    grads.OpenAnyDType(i).Write(next(sums, i).View(grads.spec(i).shape));
  }
}

}  // namespace

Tensor Joined(const std::vector<Tensor>& parts, int dim) {
  return parts.size() == 1 || !parts[0].defined() ? parts[0] : ops::Concat(parts, dim);
}

Tensor SumParts(const TensorRanks& ranks, const std::vector<Tensor>& parts) {
  const Tensor own =
      ranks.SumOwn([&](int64_t j) { return parts[static_cast<size_t>(j)].Detach().Clone(); });
  Tensor sum = ranks.Sum(own, own.dtype());
  std::vector<const Tensor*> edges;
  for (const Tensor& part : parts) edges.push_back(&part);
  RecordOp("sum_parts", edges, std::vector<Tensor*>{&sum}, {},
           [](const SavedTensors&, Gradients& grads) { grads.PutAll(grads[0]); });
  return sum;
}

std::vector<std::vector<Tensor>> FanOut(const TensorRanksPtr& ranks,
                                        const std::vector<Tensor>& inputs) {
  std::vector<const Tensor*> edges;
  std::vector<std::vector<Tensor>> copies(inputs.size());
  std::vector<Tensor*> outputs;
  for (size_t i = 0; i < inputs.size(); ++i) {
    copies[i].resize(static_cast<size_t>(ranks->own()));
    if (!inputs[i].defined()) continue;
    edges.push_back(&inputs[i]);
    // In the dtype of the sums, which is that of the gradients; without memory of its own.
    const DType wide = AccumulationDType(inputs[i].dtype());
    const Tensor place = Tensor::Empty({1}, wide, inputs[i].device()).Expand(inputs[i].shape());
    for (Tensor& copy : copies[i]) {
      copy = place;
      outputs.push_back(&copy);
    }
  }
  RecordOp("fan_out", edges, outputs, {},
           [ranks](const SavedTensors&, Gradients& grads) { AddCopies(*ranks, grads); });
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined()) continue;
    for (Tensor& copy : copies[i]) {
      Tensor value = inputs[i].Detach();
      value.set_autograd(copy.autograd());
      copy = value;
    }
  }
  return copies;
}

std::pair<Tensor, Tensor> MapParts(const TensorRanksPtr& ranks, const nn::ResidualStream& stream,
                                   std::vector<Tensor> parameters, const StreamPart& f) {
  const Tensor& x = stream.x;
  const ops::Branch& open = stream.open;
  const int64_t own = ranks->own();
  const int dim = ranks->part_dim();
  LS_CHECK(x.defined() && x.ndim() == 3 && x.dim(1) > 0 && x.dim(dim) % own == 0,
           "sequence parallelism: the sequence must divide into the ", ranks->parts(),
           " parts in which its sums are made (virtual.tp), and this rank has ", own,
           " of them in ", x.Describe(), ": use a block_size that is a multiple, or NoGrad");
  parameters.push_back(open.bias);
  const auto copies = FanOut(ranks, parameters);
  const std::vector<Tensor> xs = x.Chunk(own, dim);
  std::vector<Tensor> branches(xs.size()), starts(xs.size()), sums, ys;
  if (open.value.defined()) branches = open.value.Chunk(own, dim);
  if (stream.x0.defined()) starts = stream.x0.Chunk(own, dim);
  const TensorRanksPtr within = ranks->within();
  const StreamPart each = [&](const nn::ResidualStream& part, const std::vector<Tensor>& of_part,
                              SamplePart where) {
    if (!within) return f(part, of_part, where);
    return MapParts(
        within, part, of_part,
        [&](const nn::ResidualStream& inner, const std::vector<Tensor>& of_inner, SamplePart at) {
          return f(inner, of_inner, {where.begin + at.begin, where.of});
        });
  };
  // The elements of a sample in a virtual part.
  const int64_t elements = xs[0].dim(1) * x.dim(2) * (within ? within->size() : 1);
  for (size_t j = 0; j < xs.size(); ++j) {
    nn::ResidualStream part(xs[j], open, starts[j]);
    part.open.value = branches[j];
    part.open.bias = copies.back()[j];
    std::vector<Tensor> own_copies;
    for (size_t i = 0; i + 1 < copies.size(); ++i) own_copies.push_back(copies[i][j]);
    const auto [sum, y] = each(part, own_copies,
                               {.begin = ranks->PartAt(static_cast<int64_t>(j)) * elements,
                                .of = ranks->sequence_parts() * elements});
    sums.push_back(sum);
    ys.push_back(y);
  }
  return {Joined(sums, dim), Joined(ys, dim)};
}

SequenceNorm::SequenceNorm(const nn::ResidualNorm& replaced, TensorRanksPtr ranks)
    : ResidualNorm(&replaced), ranks_(std::move(ranks)) {}

std::pair<Tensor, Tensor> SequenceNorm::Forward(const nn::ResidualStream& stream) {
  if (!GradEnabled()) return ResidualNorm::Forward(stream);
  return MapParts(ranks_, stream, {weight_value(), bias_value()},
                  [&](const nn::ResidualStream& part, const std::vector<Tensor>& copies,
                      SamplePart where) { return Apply(part, copies[0], copies[1], where); });
}

SequenceBranchNorm::SequenceBranchNorm(const nn::BranchNorm& replaced, TensorRanksPtr ranks)
    : BranchNorm(&replaced), ranks_(std::move(ranks)) {}

ops::Branch SequenceBranchNorm::Forward(ops::Branch branch) {
  if (!GradEnabled()) return BranchNorm::Forward(std::move(branch));
  // A stream that consists of only the branch's value.
  nn::ResidualStream stream(branch.value, branch);
  stream.open.value = {};
  const StreamPart norm = [&](const nn::ResidualStream& part, const std::vector<Tensor>& copies,
                              SamplePart where) {
    ops::Branch own = part.open;
    own.value = part.x;
    return std::pair(Tensor(), Apply(own, copies[0], copies[1], where));
  };
  return MapParts(ranks_, stream, {weight_value(), bias_value()}, norm).second;
}

SequenceMix::SequenceMix(const nn::StreamMix& replaced, TensorRanksPtr ranks)
    : StreamMix(&replaced), ranks_(std::move(ranks)) {}

std::pair<Tensor, Tensor> SequenceMix::Forward(const nn::ResidualStream& stream) {
  if (!GradEnabled()) return StreamMix::Forward(stream);
  return MapParts(ranks_, stream, {a()->value(), b()->value()},
                  [](const nn::ResidualStream& part, const std::vector<Tensor>& copies,
                     SamplePart where) { return Apply(part, copies[0], copies[1], where); });
}

SequenceLinear::SequenceLinear(std::shared_ptr<Parameter> weight, TensorRanksPtr ranks)
    : ranks_(std::move(ranks)), weight_(std::move(weight)) {
  ShareParameter("weight", weight_);
}

Tensor SequenceLinear::Forward(const Tensor& x) {
  if (!GradEnabled()) return ops::Linear(x, *weight_);
  const StreamPart product = [](const nn::ResidualStream& part, const std::vector<Tensor>& copies,
                                SamplePart) {
    return std::pair(Tensor(), ops::Linear(part.x, copies[0]));
  };
  return MapParts(ranks_, x, {weight_->value()}, product).second;
}

SequenceDropout::SequenceDropout(double p, TensorRanksPtr ranks)
    : ranks_(std::move(ranks)), p_(p) {}

Tensor SequenceDropout::Forward(const Tensor& x) {
  if (p_ == 0) return x;
  if (CurrentStepState() == nullptr) return Evaluated(x);
  const uint64_t site = nn::RandomSite(path());
  const TensorRanksPtr within = ranks_->within();
  const int64_t of_part = within ? within->size() : 1, rank = within ? within->rank() : 0;
  std::vector<Tensor> ys;
  for (const Tensor& part : x.Chunk(ranks_->own(), ranks_->part_dim())) {
    const int64_t elements = part.dim(1) * part.dim(2);  // of a sample
    const int64_t at = ranks_->PartAt(std::ssize(ys)) * of_part + rank;
    ys.push_back(ops::Dropout(
        part, p_, site,
        {.begin = at * elements, .of = ranks_->sequence_parts() * of_part * elements}));
  }
  return Joined(ys, ranks_->part_dim());
}

RowDropout::RowDropout(double p, TensorRanksPtr ranks, TensorRanksPtr context)
    : ranks_(std::move(ranks)), context_(std::move(context)), p_(p) {}

Tensor RowDropout::Forward(const Tensor& x) {
  if (p_ == 0) return x;
  if (CurrentStepState() == nullptr) return Evaluated(x);
  const uint64_t site = nn::RandomSite(path());
  const TensorRanks* const context = context_.get();
  const int64_t chunks = context ? context->sequence_parts() : 1;
  std::vector<Tensor> ys;
  for (const Tensor& chunk : x.Chunk(context ? context->own() : 1, 0)) {
    const int64_t at = context ? context->PartAt(std::ssize(ys)) : 0;
    std::vector<Tensor> columns;
    for (const Tensor& part : chunk.Chunk(ranks_->own(), 2)) {
      const int64_t elements = part.dim(1) * part.dim(2);  // of a sample
      const int64_t place = at * ranks_->parts() + ranks_->PartAt(std::ssize(columns));
      columns.push_back(ops::Dropout(
          part, p_, site, {.begin = place * elements, .of = chunks * ranks_->parts() * elements}));
    }
    ys.push_back(Joined(columns, 2));
  }
  return Joined(ys, 0);
}

}  // namespace lockstep::dist
