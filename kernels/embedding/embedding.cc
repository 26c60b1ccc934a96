#include "kernels/embedding/embedding.h"

#include "core/autograd/node.h"

namespace lockstep::ops {
Tensor Embedding(const Tensor& ids, const Tensor& weight) {
  LS_CHECK(ids.defined() && (ids.dtype() == DType::kI32 || ids.dtype() == DType::kI64),
           "embedding: ids must be i32 or i64, got ", ids.Describe());
  LS_CHECK(weight.defined() && weight.ndim() == 2 && IsFloating(weight.dtype()),
           "embedding: weight must be a floating [V, C], got ", weight.Describe());
  LS_CHECK(ids.device() == weight.device(), "embedding: ids are on ", ids.device(),
           ", the weight is on ", weight.device());
  const Tensor index = ids.Contiguous();
  const Tensor table = weight.Detach().Contiguous();
  Shape shape = ids.shape();
  shape.push_back(weight.dim(1));
  Tensor y = Tensor::Empty(shape, weight.dtype(), weight.device());
  embedding_forward(CurrentStream(y.device()), index, table, {}, y);
  RecordOp("embedding", {&weight}, {&y}, {{index, "the ids of embedding"}},
           [](const SavedTensors& saved, Gradients& grads) {
             const Tensor ids = saved[0];
             const auto [dweight, accumulate] = grads.OpenAnyDType(0);
             embedding_backward(CurrentStream(ids.device()), ids, grads[0], {}, dweight,
                                accumulate);
           });
  return y;
}

}  // namespace lockstep::ops
