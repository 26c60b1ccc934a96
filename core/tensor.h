// The tensor: a value handle on a storage, with its place in an autograd graph.
#pragma once

#include <concepts>
#include <functional>
#include <iosfwd>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/autograd/grad_hooks.h"
#include "core/dtype.h"
#include "core/shape.h"
#include "core/storage.h"

namespace lockstep {

struct Edge;

// {storage, dtype, shape, strides, offset, autograd}. Copying a handle shares the bytes and the
// autograd state. An undefined tensor (default constructed, moved from, or a gradient that Backward
// has not made) has neither device nor data: asking for them throws ArgumentError.
class Tensor {
 public:
  Tensor() = default;                          // undefined
  static Tensor UnmadeGradient(DType dtype) {  // undefined, and errors say why
    Tensor x;
    x.dtype_ = dtype;
    x.unmade_ = true;
    return x;
  }

  // ---- Makers. Contiguous, no gradient. ----
  static Tensor Empty(const Shape& shape, DType dtype, Device device = kCpu);  // uninitialised
  static Tensor EmptyLike(const Tensor& x) { return Empty(x.shape(), x.dtype(), x.device()); }
  static Tensor Zeros(const Shape& shape, DType dtype, Device device = kCpu);
  static Tensor Full(const Shape& shape, double value, DType dtype, Device device = kCpu);
  // Copies host values.
  template <class T>
  static Tensor FromSpan(std::span<const T> values, const Shape& shape, Device device = kCpu) {
    return FromBytes(std::as_bytes(values), shape, DTypeOf<T>, device);
  }
  // Braces have no type of their own: FromVector<float>({1, 2, 3}, {3}).
  template <class T>
  static Tensor FromVector(const std::vector<T>& values, const Shape& shape, Device device = kCpu) {
    if constexpr (std::is_same_v<T, bool>) {  // whose vector is packed into bits
      const std::vector<uint8_t> bytes(values.begin(), values.end());
      return FromBytes(std::as_bytes(std::span(bytes)), shape, DType::kBool, device);
    } else {
      return FromSpan(std::span<const T>(values), shape, device);
    }
  }
  static Tensor FromBytes(std::span<const std::byte> bytes, const Shape& shape, DType dtype,
                          Device device = kCpu);
  // Element 0 lies `offset` elements into the storage. Throws if it does not fit.
  static Tensor FromStorage(Storage storage, DType dtype, const Shape& shape, int64_t offset = 0);

  // ---- What it is. ----
  bool defined() const { return storage_.defined(); }
  const Shape& shape() const { return shape_; }
  const Shape& strides() const { return strides_; }  // in elements
  int64_t dim(int i) const { return shape_[i]; }     // negative counts from the end
  int ndim() const { return shape_.ndim(); }
  int64_t numel() const { return numel_; }
  int64_t bytes() const { return numel_ * SizeOf(dtype_); }
  DType dtype() const { return dtype_; }
  Device device() const {
    if (unmade_) [[unlikely]]
      ThrowUnmade();
    return storage_.device();
  }
  int64_t offset() const { return offset_; }
  const Storage& storage() const { return storage_; }
  bool is_contiguous() const;
  std::string Describe() const;  // "f32[2, 3] on cpu"

  // ---- The bytes. Handles are values: constness of a Tensor is not that of its elements. ----
  void* raw_data() const;
  template <class T>
  T* data() const {
    LS_CHECK(DTypeOf<T> == dtype_, "data<", DTypeOf<T>, ">() of a tensor of ", dtype_);
    return static_cast<T*>(raw_data());
  }
  // All elements in row-major order; synchronises with the device.
  template <class T>
  std::vector<T> ToVector() const {
    LS_CHECK(DTypeOf<T> == dtype_, "ToVector<", DTypeOf<T>, ">() of a tensor of ", dtype_);
    const Tensor host = Detach().To(kCpu).Contiguous();
    const T* elements = numel_ > 0 ? host.data<T>() : nullptr;
    return std::vector<T>(elements, elements + numel_);
  }
  // The only element, of any dtype; synchronises with the device.
  double Item() const;

  // ---- Views: the same bytes, of any dtype, in another shape or order. They are differentiable
  // and save nothing; the gradient goes to where the elements came from. Dimensions, and the ends
  // of a slice, count from the end where they are negative. ----
  Tensor View(const Shape& shape) const;     // of a contiguous tensor; one size may be -1
  Tensor Reshape(const Shape& shape) const;  // of any tensor: copies if it is not contiguous
  Tensor Transpose(int a, int b) const;
  Tensor Permute(const std::vector<int>& order) const;  // dimension i of the view is order[i]
  Tensor Slice(int dim, int64_t begin, int64_t end) const;
  // Consecutive slices of the given sizes, which add up to the dimension. Their gradients are
  // written side by side, without intermediate tensors of this one's size.
  std::vector<Tensor> Split(const std::vector<int64_t>& sizes, int dim) const;
  std::vector<Tensor> Chunk(int64_t chunks, int dim) const;  // the same, of equal size
  // Broadcast, aligned at the last dimension, with stride 0. The gradient is summed over what was
  // repeated, in f32 or wider.
  Tensor Expand(const Shape& shape) const;
  Tensor Squeeze(int dim) const;    // without a dimension, of size 1
  Tensor Unsqueeze(int dim) const;  // with a new dimension of size 1, which becomes `dim`
  Tensor Detach() const;            // without autograd

  // ---- Copies. They are differentiable, whether or not something had to be copied: the gradient
  // is copied back, to the dtype and device it came from. Integers get none. ----
  Tensor Contiguous() const;  // itself if it already is
  Tensor Clone() const;
  Tensor To(Device device) const;  // itself if already there
  Tensor To(DType dtype) const;    // itself if already that

  // ---- Writes; no gradient. ----
  // Overwrites the elements with those of `source` (same shape; any dtype and device). The two may
  // overlap: the source is read first. Throws ArgumentError if this tensor was expanded, so that
  // several of its elements share a place.
  void CopyFrom(const Tensor& source) const;
  void Fill(double value) const;

  // ---- Autograd (core/autograd/node.h). ----
  bool requires_grad() const;
  // Makes this a leaf that collects a gradient, or stops it. Not for results of operations.
  Tensor& SetRequiresGrad(bool value = true);
  // The gradient of a leaf, undefined before the first backward. Throws ArgumentError for any other
  // tensor.
  Tensor grad() const;
  // Empties the gradient of a leaf; does nothing to a tensor that does not require one. Throws
  // ArgumentError for a result of operations.
  void ZeroGrad() const;
  // From now on each Backward calls `hook` with this tensor's gradient, once, when all that this
  // backward adds to it is there: of a leaf, before it is added to what earlier backwards left; of
  // a result, before its node's backward. A hook returns nothing, or a tensor of the same shape,
  // dtype and device that takes the gradient's place, or an undefined one to leave it as it is. It
  // must not write to the gradient, whose memory may be shared, nor hold this tensor, which holds
  // the hook. Hooks run in the order in which they were registered, without recording, and are not
  // called where no gradient arrives; under data parallelism on each rank, before the ranks'
  // gradients are summed. They see what backward computes: a micro-batch's gradient, times the loss
  // scale of fp16. Throws ArgumentError if the tensor does not require a gradient, or is a
  // parameter of which this rank holds only a range of elements; Backward throws it for a gradient
  // that does not fit.
  //   x.RegisterHook([](const Tensor& grad) { return grad * 0.5; });
  template <std::invocable<const Tensor&> F>
  HookHandle RegisterHook(F hook) const;
  const std::shared_ptr<Edge>& autograd() const { return autograd_; }
  void set_autograd(std::shared_ptr<Edge> meta) { autograd_ = std::move(meta); }

 private:
  [[noreturn]] static void ThrowUnmade();
  HookHandle AddHook(std::function<Tensor(const Tensor&)> hook) const;
  Tensor Copied(DType dtype, Device device) const;
  Tensor WithLayout(const Shape& shape, const Shape& strides, int64_t offset) const;

  Storage storage_;
  DType dtype_ = DType::kF32;
  bool unmade_ = false;  // undefined since Backward has not made it
  Shape shape_, strides_;
  int64_t offset_ = 0, numel_ = 0;
  std::shared_ptr<Edge> autograd_;
};

template <std::invocable<const Tensor&> F>
HookHandle Tensor::RegisterHook(F hook) const {
  if constexpr (std::is_void_v<std::invoke_result_t<F, const Tensor&>>) {
    return AddHook([hook = std::move(hook)](const Tensor& grad) mutable {
      hook(grad);
      return Tensor();
    });
  } else {
    return AddHook(std::move(hook));
  }
}

// The elements as NumPy lays them out, 4 digits of each, then what the tensor is:
//   [[ 1.  ,  2.5 ],
//    [-3.25, 10.  ]] f32[2, 2] on cpu
// For a tensor of more than 1,000 elements, only the first and last three along each dimension. On
// the meta device, "f32[2, 2] on meta". Waits for the device.
std::string ToString(const Tensor& x);
std::ostream& operator<<(std::ostream& out, const Tensor& x);

// The order that undoes Permute(order), whose dimensions count from the front.
std::vector<int> InverseOrder(const std::vector<int>& order);

}  // namespace lockstep
