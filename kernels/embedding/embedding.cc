#include "kernels/embedding/embedding.h"

#include "core/autograd/node.h"
#include "core/autograd/saved_tensor.h"

namespace lockstep::ops {
namespace {

class EmbeddingNode : public Node {
 public:
  EmbeddingNode(const Tensor& ids, const Tensor& weight)
      : Node("embedding"), ids_(ids, "the ids of embedding"), weight_(weight.Detach()) {}

  void Backward(std::span<const Tensor> grads, const std::vector<bool>&,
                std::span<GradSink> sinks) override {
    const Tensor ids = ids_.Unpack();
    const GradSink::Target dweight = sinks[0].OpenAnyDType(weight_);
    embedding_backward(CurrentStream(ids.device()), ids, grads[0], {}, dweight.tensor,
                       dweight.accumulate);
  }
  void Release() override { ids_.Reset(); }

 private:
  SavedTensor ids_;
  Tensor weight_;  // for its shape and dtype
};

}  // namespace

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
  if (NeedsGrad({&weight})) Record(std::make_shared<EmbeddingNode>(index, weight), {&weight}, {&y});
  return y;
}

}  // namespace lockstep::ops
