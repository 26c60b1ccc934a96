#include "kernels/embedding/embedding_cpu.h"
#include "kernels/token_position_embedding/token_position_embedding.h"

namespace lockstep::cpu {
namespace {

constexpr int64_t kChannelBlock = 256;

void ForwardCpu(Stream, const Tensor& ids, const Tensor& wte, const Tensor& wpe,
                int64_t first_position, const Tensor& positions, const Tensor& y) {
  const int64_t t = ids.dim(1), c = wte.dim(1);
  DispatchIndex("token_position_embedding", ids.dtype(), [&]<class I>(TypeTag<I>) {
    CheckIds<I>("token_position_embedding", ids, wte.dim(0));
    DispatchFloat("token_position_embedding", wte.dtype(), [&]<class T>(TypeTag<T>) {
      using A = Acc<T>;
      const I* id = ids.data<I>();
      const T *tokens = wte.data<T>(), *places = wpe.data<T>();
      const int32_t* position = positions.defined() ? positions.data<int32_t>() : nullptr;
      T* out = y.data<T>();
      ParallelForEach(ids.numel(), GrainOf(c), [=](int64_t i) {
        const int64_t p = position != nullptr ? position[i] : first_position + i % t;
        const T *token = tokens + id[i] * c, *place = places + p * c;
        T* row = out + i * c;
        for (int64_t k = 0; k < c; ++k) {
          row[k] = Convert<T>(Convert<A>(token[k]) + Convert<A>(place[k]));
        }
      });
    });
  });
}

// Channels [0, n) of position t: dy points at them in sequence 0.
template <class T, class D>
void SumBatch(const T* dy, int64_t batch, int64_t batch_stride, D* out, int64_t n,
              bool accumulate) {
  using A = std::common_type_t<Acc<T>, Acc<D>>;
  A sum[kChannelBlock] = {};
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t i = 0; i < n; ++i) sum[i] += Convert<A>(dy[b * batch_stride + i]);
  }
  for (int64_t i = 0; i < n; ++i) {
    out[i] = Convert<D>(accumulate ? Convert<A>(out[i]) + sum[i] : sum[i]);
  }
}

void BackwardCpu(Stream, const Tensor& dy, int64_t first_position, const Tensor& dwpe,
                 bool accumulate) {
  const int64_t batch = dy.dim(0), t = dy.dim(1), c = dy.dim(2);
  if (dwpe.numel() == 0) return;
  DispatchFloat("token_position_embedding", dy.dtype(), [&]<class T>(TypeTag<T>) {
    DispatchFloat("token_position_embedding", dwpe.dtype(), [&]<class D>(TypeTag<D>) {
      const T* from = dy.data<T>();
      D* to = dwpe.data<D>();
      ParallelForEach(dwpe.dim(0), GrainOf((batch + 1) * c), [=](int64_t p) {
        const int64_t at = p - first_position;
        if (at < 0 || at >= t) {
          if (!accumulate) std::fill(to + p * c, to + (p + 1) * c, D{});
          return;
        }
        for (int64_t k = 0; k < c; k += kChannelBlock) {
          SumBatch(from + at * c + k, batch, t * c, to + p * c + k, std::min(kChannelBlock, c - k),
                   accumulate);
        }
      });
    });
  });
}

LS_REGISTER(token_position_embedding_forward, DeviceType::kCpu, ForwardCpu);
LS_REGISTER(token_position_embedding_backward, DeviceType::kCpu, BackwardCpu);

}  // namespace
}  // namespace lockstep::cpu
