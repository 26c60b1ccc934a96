#include "kernels/token_position_embedding/token_position_embedding.h"

#include "core/autograd/node.h"
#include "core/autograd/saved_tensor.h"
#include "kernels/checks.h"
#include "kernels/embedding/embedding.h"

namespace lockstep::ops {
namespace {

class TokenPositionEmbeddingNode : public Node {
 public:
  TokenPositionEmbeddingNode(const Tensor& ids, const Tensor& wte, const Tensor& wpe,
                             int64_t first_position, const Tensor& positions)
      : Node("token_position_embedding"),
        ids_(ids, "the ids of token_position_embedding"),
        wte_(wte.Detach()),
        wpe_(wpe.Detach()),
        first_position_(first_position) {
    if (positions.defined()) {
      positions_ = SavedTensor(positions, "the positions of token_position_embedding");
    }
  }

  void Backward(std::span<const Tensor> grads, const std::vector<bool>& needs,
                std::span<GradSink> sinks) override {
    const Tensor& dy = grads[0];
    const Stream stream = CurrentStream(dy.device());
    if (needs[0]) {
      const GradSink::Target dwte = sinks[0].OpenAnyDType(wte_);
      embedding_backward(stream, ids_.Unpack(), dy, {}, dwte.tensor, dwte.accumulate);
    }
    if (needs[1]) {
      const GradSink::Target dwpe = sinks[1].OpenAnyDType(wpe_);
      if (positions_.defined()) {
        embedding_backward(stream, positions_.Unpack(), dy, {}, dwpe.tensor, dwpe.accumulate);
      } else {
        token_position_embedding_backward(stream, dy, first_position_, dwpe.tensor,
                                          dwpe.accumulate);
      }
    }
  }
  void Release() override {
    ids_.Reset();
    positions_.Reset();
  }

 private:
  SavedTensor ids_, positions_;
  Tensor wte_, wpe_;  // for their shapes and dtypes
  int64_t first_position_;
};

void Check(const Tensor& ids, const Tensor& wte, const Tensor& wpe, int64_t first_position,
           const Tensor& positions) {
  const char* op = "token_position_embedding: ";
  LS_CHECK(ids.defined() && ids.ndim() == 2 &&
               (ids.dtype() == DType::kI32 || ids.dtype() == DType::kI64),
           op, "ids must be an i32 or i64 [B, T], got ", ids.Describe());
  LS_CHECK(wte.defined() && wte.ndim() == 2 && IsFloating(wte.dtype()), op,
           "wte must be a floating [V, C], got ", wte.Describe());
  LS_CHECK(
      wpe.defined() && wpe.ndim() == 2 && wpe.dtype() == wte.dtype() && wpe.dim(1) == wte.dim(1),
      op, "wpe must be a ", wte.dtype(), " [P, ", wte.dim(1), "] as wte is ", wte.Describe(),
      ", got ", wpe.Describe());
  LS_CHECK(ids.device() == wte.device() && wpe.device() == wte.device(), op, "ids are on ",
           ids.device(), ", wte is on ", wte.device(), ", wpe is on ", wpe.device());
  CheckPositions("token_position_embedding", positions, ids.dim(0), ids.dim(1), ids.device(),
                 wpe.dim(0));
  if (positions.defined()) return;
  LS_CHECK(first_position >= 0 && first_position + ids.dim(1) <= wpe.dim(0), op, "a sequence of ",
           ids.dim(1), " tokens from position ", first_position, " does not fit the ", wpe.dim(0),
           " positions of wpe: shorten it, or build the model with a larger block_size");
}

}  // namespace

Tensor TokenPositionEmbedding(const Tensor& ids, const Tensor& wte, const Tensor& wpe,
                              int64_t first_position, const Tensor& positions) {
  Check(ids, wte, wpe, first_position, positions);
  const Tensor index = ids.Contiguous();
  const Tensor places = positions.defined() ? positions.Contiguous() : Tensor();
  Tensor y = Tensor::Empty({ids.dim(0), ids.dim(1), wte.dim(1)}, wte.dtype(), wte.device());
  token_position_embedding_forward(CurrentStream(y.device()), index, wte.Detach().Contiguous(),
                                   wpe.Detach().Contiguous(), first_position, places, y);
  if (NeedsGrad({&wte, &wpe})) {
    Record(std::make_shared<TokenPositionEmbeddingNode>(index, wte, wpe, first_position, places),
           {&wte, &wpe}, {&y});
  }
  return y;
}

}  // namespace lockstep::ops
