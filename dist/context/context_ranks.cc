#include "dist/context/context_ranks.h"

#include <algorithm>
#include <bit>

#include "core/autograd/gradients.h"

namespace lockstep::dist {
namespace {

int64_t CheckedPairs(const ProcessGroup* group, int64_t pairs, bool leaves_gradients_to_reducer) {
  const int64_t size = SizeOf(group);
  LS_CHECK(pairs >= 1 && pairs % size == 0 &&
               (size == 1 || std::has_single_bit(static_cast<uint64_t>(pairs / size))),
           "context parallelism: the ", pairs,
           " pairs of chunks into which a sequence is cut (virtual.cp) must be the ", size,
           " ranks (parallel.cp) times a power of two: use ", 2 * size);
  LS_CHECK(!leaves_gradients_to_reducer || pairs == size,
           "context parallelism: where sums are left to the reducer, ", size, " ranks have ", size,
           " pairs of chunks (virtual.cp), got ", pairs);
  return pairs;
}

// Size of dimension 1 in chunks.
Shape WithLength(Shape shape, int64_t length) {
  shape[1] = length;
  return shape;
}

}  // namespace

ContextRanks::ContextRanks(ProcessGroup* group, int64_t pairs, bool leaves_gradients_to_reducer,
                           TensorRanksPtr within)
    : TensorRanks(leaves_gradients_to_reducer ? nullptr : group,
                  2 * (leaves_gradients_to_reducer
                           ? 1
                           : CheckedPairs(group, pairs, leaves_gradients_to_reducer))),
      context_(group),
      chunks_(2 * CheckedPairs(group, pairs, leaves_gradients_to_reducer)),
      leaves_gradients_to_reducer_(leaves_gradients_to_reducer),
      within_(std::move(within)) {}

int64_t ContextRanks::ChunkOf(int rank, int64_t j) const {
  const int64_t at = rank * own() + j, pair = at / 2;
  return at % 2 == 0 ? pair : chunks_ - 1 - pair;
}

// What tensor parallelism cuts is the same cut on all of these ranks. Experts are split across runs
// of neighbours (ShareExperts).
int64_t ContextRanks::CopyStride(const Parameter& parameter) const {
  int64_t stride = 1;
  for (const ShardCut& cut : parameter.layout().cuts) {
    if (cut.axis != "tp") stride *= cut.parts;
  }
  return std::min(stride, size());
}

std::vector<Tensor> ContextRanks::Cut(const Tensor& whole) const {
  const int64_t parts = within_ ? within_->parts() : 1;
  LS_CHECK(whole.defined() && whole.ndim() >= 2 && whole.dim(1) % (chunks_ * parts) == 0,
           "context parallelism: the ", chunks_, " chunks of a sequence, two for each of ",
           chunks_ / 2, " pairs (virtual.cp)",
           parts > 1 ? StrCat(", with ", parts, " parts (virtual.tp) in each") : "",
           ", must divide its length, got ", whole.Describe(),
           ": use a block_size that is a multiple of ", chunks_ * parts, ", or NoGrad");
  const int64_t length = whole.dim(1) / chunks_;
  std::vector<Tensor> own_chunks;
  for (int64_t j = 0; j < own(); ++j) {
    own_chunks.push_back(whole.Slice(1, PartAt(j) * length, (PartAt(j) + 1) * length).Contiguous());
  }
  return own_chunks;
}

Tensor ContextRanks::GatherChunks(const std::vector<Tensor>& own_chunks, const char* what) const {
  const Tensor& like = own_chunks[0];
  const int64_t ranks = context_size(), length = like.dim(1);
  Shape shape = {ranks, own()};
  for (int i = 0; i < like.ndim(); ++i) shape.push_back(like.dim(i));
  const Tensor all = Tensor::Empty(shape, like.dtype(), like.device());
  const auto place = [&](int64_t rank, int64_t j) {
    return all.Slice(0, rank, rank + 1).Slice(1, j, j + 1).View(like.shape());
  };
  for (int64_t j = 0; j < own(); ++j) {
    place(context_rank(), j).CopyFrom(own_chunks[static_cast<size_t>(j)]);
  }
  if (context_) {
    const Tensor mine = all.Slice(0, context_rank(), context_rank() + 1);
    context_->AllGather(mine, all, what)->Wait();
  }
  const Tensor whole =
      Tensor::Empty(WithLength(like.shape(), chunks_ * length), like.dtype(), like.device());
  for (int rank = 0; rank < ranks; ++rank) {
    for (int64_t j = 0; j < own(); ++j) {
      const int64_t begin = ChunkOf(rank, j) * length;
      whole.Slice(1, begin, begin + length).CopyFrom(place(rank, j));
    }
  }
  return whole;
}

std::vector<Tensor> ContextRanks::SumForChunks(const std::vector<Tensor>& own_parts) const {
  const Tensor& like = own_parts[0];
  const int64_t ranks = context_size(), length = like.dim(1) / (PartAt(0) + 1);
  const Shape chunk = WithLength(like.shape(), length);
  // Calls f(j, i) where the j-th chunk of `from` has something for the i-th chunk of `to`.
  const auto for_each = [&](int from, int to, const auto& f) {
    for (int64_t j = 0; j < own(); ++j) {
      for (int64_t i = 0; i < own(); ++i) {
        if (ChunkOf(to, i) <= ChunkOf(from, j)) f(j, i);
      }
    }
  };
  const auto count = [&](int from, int to) {
    int64_t n = 0;
    for_each(from, to, [&](int64_t, int64_t) { ++n; });
    return n;
  };
  std::vector<int64_t> sent, received;  // chunks
  int64_t to_send = 0, to_receive = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    sent.push_back(count(context_rank(), rank));
    received.push_back(count(rank, context_rank()));
    to_send += sent.back();
    to_receive += received.back();
  }
  const auto buffer = [&](int64_t n) {
    Shape shape = {n};
    for (int i = 0; i < chunk.ndim(); ++i) shape.push_back(chunk[i]);
    return Tensor::Empty(shape, like.dtype(), like.device());
  };
  const auto at = [&](const Tensor& x, int64_t n) { return x.Slice(0, n, n + 1).View(chunk); };
  const Tensor send = buffer(to_send), got = context_ ? buffer(to_receive) : send;
  int64_t next = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    for_each(context_rank(), rank, [&](int64_t j, int64_t i) {
      const int64_t begin = ChunkOf(rank, i) * length;
      at(send, next++).CopyFrom(own_parts[static_cast<size_t>(j)].Slice(1, begin, begin + length));
    });
  }
  if (context_) {
    const int64_t size = send.numel() / to_send;
    for (auto* counts : {&sent, &received}) {
      for (int64_t& n : *counts) n *= size;
    }
    context_->AllToAll(send, got, sent, received, "gradients of keys and values")->Wait();
  }
  // [own chunk][chunk that has something for it], undefined where it has nothing.
  std::vector<std::vector<Tensor>> parts(static_cast<size_t>(own()),
                                         std::vector<Tensor>(static_cast<size_t>(chunks_)));
  next = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    for_each(rank, context_rank(), [&](int64_t j, int64_t i) {
      parts[static_cast<size_t>(i)][static_cast<size_t>(ChunkOf(rank, j))] = at(got, next++);
    });
  }
  std::vector<Tensor> sums;
  for (const std::vector<Tensor>& of_chunk : parts) {
    const Tensor sum = Tensor::Empty(chunk, AccumulationDType(like.dtype()), like.device());
    bool first = true;
    for (const Tensor& part : of_chunk) {
      if (part.defined()) GradTarget{sum, !std::exchange(first, false)}.Write(part);
    }
    sums.push_back(sum);
  }
  return sums;
}

}  // namespace lockstep::dist
