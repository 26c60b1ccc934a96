#include "kernels/bench/library.h"

#include <vector>

#include "core/stream.h"
#include "kernels/attention/attention_kernels.h"
#include "kernels/attention/cudnn_attention.h"
#include "kernels/bench/timing.h"
#include "kernels/matmul/gemm_cuda.h"
#include "kernels/matmul/product_of.h"

namespace lockstep {
namespace {

// c = op(a) op(b), of batches of matrices: of the op's operands, or of a gradient.
struct Product {
  Tensor a;
  bool transpose_a = false;
  Tensor b;
  bool transpose_b = false;
  Tensor c;
};

LibraryCall ByCuBlasLt(std::vector<Product> products) {
  return {"cuBLASLt", [products = std::move(products)] {
            for (const Product& p : products) {
              cuda::Gemm(CurrentStream(p.a.device()),
                         ProductOf<cuda::GemmArgs>(p.a, p.transpose_a, p.b, p.transpose_b, p.c));
            }
          }};
}

// y = a op(b) in forward, da = dy op(b)' and db (or its transpose) in backward, for a [batch, m,
// k].
LibraryCall Products(const Tensor& a, const Tensor& b, bool transpose_b, int64_t n, int64_t batch,
                     bool backward) {
  const int64_t k = a.dim(-1), m = a.numel() / (k * batch);
  const Tensor x = a.View({batch, m, k}), w = b.View({batch, b.dim(-2), b.dim(-1)});
  const Tensor y = RandomTensor({batch, m, n}, a.dtype(), a.device());
  if (!backward) return ByCuBlasLt({{x, false, w, transpose_b, y}});
  const Product of_a = {y, false, w, !transpose_b, Tensor::EmptyLike(x)};
  const Tensor dw = Tensor::EmptyLike(w);
  if (transpose_b) return ByCuBlasLt({of_a, {y, true, x, false, dw}});
  return ByCuBlasLt({of_a, {x, true, y, false, dw}});
}

// Attention of q [B, T, H, D], k and v [B, T, G, D].
std::optional<LibraryCall> ByCudnn(const Tensor& q, const Tensor& k, const Tensor& v,
                                   bool backward) {
  const Stream stream = CurrentStream(q.device());
  const auto why_not = [&] { return cuda::WhyNoCudnnAttention(stream); };
  if (q.dtype() != DType::kBF16 || !why_not().empty() ||
      cuda::ChooseAttentionKernels(cuda::AttentionKernels::kCudnn, q, false, why_not).kernels !=
          cuda::AttentionKernels::kCudnn) {
    return std::nullopt;
  }
  AttentionBackwardArgs b{.q = q, .k = k, .v = v};
  b.y = Tensor::EmptyLike(q);
  b.log_sum_exp = Tensor::Empty({q.dim(0), q.dim(2), q.dim(1)}, DType::kF32, q.device());
  const AttentionForwardArgs f{q, k, v, b.scores, {}, b.y, b.log_sum_exp};
  const auto forward = [f] { return cuda::CudnnAttentionForward(CurrentStream(f.q.device()), f); };
  if (!forward().empty()) return std::nullopt;
  if (!backward) return LibraryCall{"cuDNN", forward};
  b.dy = RandomTensor(q.shape(), q.dtype(), q.device());
  b.dq = Tensor::EmptyLike(q);
  b.dk = Tensor::EmptyLike(k);
  b.dv = Tensor::EmptyLike(v);
  const auto call = [b] { return cuda::CudnnAttentionBackward(CurrentStream(b.q.device()), b); };
  if (!call().empty()) return std::nullopt;
  return LibraryCall{"cuDNN", call};
}

}  // namespace

std::optional<LibraryCall> FindLibraryCall(const OpCase& c, const OpSample& sample,
                                           std::span<const Tensor> inputs, bool backward) {
  if (inputs.size() < 2 || !inputs[0].device().is_cuda()) return std::nullopt;
  if (c.name == "attention" && inputs.size() == 3 &&
      sample.name.find("dropout") == std::string::npos) {
    return ByCudnn(inputs[0].Detach(), inputs[1].Detach(), inputs[2].Detach(), backward);
  }
  const Tensor a = inputs[0].Detach(), b = inputs[1].Detach();
  const bool known = a.dtype() == DType::kF32 || a.dtype() == DType::kBF16;
  if (!known || !a.is_contiguous() || !b.is_contiguous()) return std::nullopt;
  if (c.name == "linear") return Products(a, b, true, b.dim(0), 1, backward);
  if (c.name == "matmul" && (a.ndim() == 2 || a.ndim() == b.ndim())) {
    return Products(a, b, false, b.dim(-1), b.numel() / (b.dim(-1) * b.dim(-2)), backward);
  }
  return std::nullopt;
}

}  // namespace lockstep
