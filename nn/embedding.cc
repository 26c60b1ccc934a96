#include "nn/embedding.h"

#include "kernels/embedding/embedding.h"
#include "kernels/token_position_embedding/token_position_embedding.h"
#include "nn/init.h"

namespace lockstep::nn {

Embedding::Embedding(int64_t num, int64_t dim, Initializer init) {
  LS_CHECK(num > 0 && dim > 0, "Embedding needs positive sizes, got ", num, " vectors of ", dim,
           " elements");
  weight_ =
      AddParameter("weight", {num, dim}, init ? std::move(init) : Normal(0, 1), /*decay=*/true);
}

Embedding::Embedding(std::shared_ptr<Parameter> weight) : weight_(std::move(weight)) {
  ShareParameter("weight", weight_);
}

Tensor Embedding::AddPositions(const Tensor& ids, const Tensor& positions, int64_t first_position,
                               const Tensor& at) {
  return ops::TokenPositionEmbedding(ids, weight_->value(), positions, first_position, at);
}

Tensor Embedding::Forward(const Tensor& ids) { return ops::Embedding(ids, weight_->value()); }

}  // namespace lockstep::nn
