#include "kernels/token_position_embedding/token_position_embedding.h"

#include "core/autograd/node.h"
#include "kernels/checks.h"
#include "kernels/embedding/embedding.h"

namespace lockstep::ops {
namespace {

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
  RecordOp("token_position_embedding", {&wte, &wpe}, {&y},
           {{index, "the ids of token_position_embedding"},
            {places, "the positions of token_position_embedding"}},
           [first_position](const SavedTensors& saved, Gradients& grads) {
             const Stream stream = CurrentStream(grads[0].device());
             const Tensor ids = saved[0], positions = saved[1];
             if (const auto [dwte, accumulate] = grads.OpenAnyDType(0); dwte.defined()) {
               embedding_backward(stream, ids, grads[0], {}, dwte, accumulate);
             }
             const auto [dwpe, accumulate] = grads.OpenAnyDType(1);
             if (dwpe.defined() && positions.defined()) {
               embedding_backward(stream, positions, grads[0], {}, dwpe, accumulate);
             } else if (dwpe.defined()) {
               token_position_embedding_backward(stream, grads[0], first_position, dwpe,
                                                 accumulate);
             }
           });
  return y;
}

}  // namespace lockstep::ops
