// A graph of cuDNN's operations and the plan that runs it: as much of cuDNN's backend API as
// attention needs. The library is loaded at run time: nothing is linked, and programs run where it
// is not installed. For .cu files.
#pragma once

#include <array>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/attention/cudnn_api.h"

namespace lockstep::cuda {

// The oldest cuDNN 9 to use: earlier ones have a known bug in attention's forward.
inline constexpr size_t kCudnnMinVersion = 91002;

struct CudnnApi {
  decltype(&cudnnGetVersion) GetVersion;
  decltype(&cudnnGetErrorString) GetErrorString;
  decltype(&cudnnGetLastErrorString) GetLastErrorString;
  decltype(&cudnnCreate) Create;
  decltype(&cudnnSetStream) SetStream;
  decltype(&cudnnBackendCreateDescriptor) CreateDescriptor;
  decltype(&cudnnBackendDestroyDescriptor) DestroyDescriptor;
  decltype(&cudnnBackendSetAttribute) SetAttribute;
  decltype(&cudnnBackendGetAttribute) GetAttribute;
  decltype(&cudnnBackendFinalize) Finalize;
  decltype(&cudnnBackendExecute) Execute;
};

// Throws Error, saying what to install, if there is no libcudnn.so.9 of kCudnnMinVersion or newer.
const CudnnApi& Cudnn();

// Throws Error: "cuDNN: <doing>: <its own words>".
void CheckCudnn(cudnnStatus_t status, const char* doing);

// Owns a cuDNN descriptor.
class CudnnDescriptor {
 public:
  explicit CudnnDescriptor(cudnnBackendDescriptorType_t type);
  ~CudnnDescriptor();
  CudnnDescriptor(CudnnDescriptor&& other) noexcept
      : descriptor_(std::exchange(other.descriptor_, nullptr)) {}
  CudnnDescriptor& operator=(CudnnDescriptor&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }

  template <class T>
  CudnnDescriptor& Set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                       std::span<const T> values) {
    SetBytes(name, type, static_cast<int64_t>(values.size()), values.data());
    return *this;
  }
  template <class T>
  CudnnDescriptor& Set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                       const T& value) {
    return Set(name, type, std::span<const T>(&value, 1));
  }
  CudnnDescriptor& Set(cudnnBackendAttributeName_t name, const CudnnDescriptor& value) {
    return Set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, value.descriptor_);
  }
  // After the last Set, before any use.
  void Finalize(const char* what);

  cudnnBackendDescriptor_t get() const { return descriptor_; }
  int64_t GetInt(cudnnBackendAttributeName_t name,
                 cudnnBackendAttributeType_t type = CUDNN_TYPE_INT64) const;

 private:
  void SetBytes(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t n,
                const void* values);

  cudnnBackendDescriptor_t descriptor_ = nullptr;
};

// The GPU for which a plan is made: one of this process, or one known only by its properties, in
// cuDNN's JSON. For the latter a plan is only a choice of an engine.
struct CudnnTarget {
  cudnnHandle_t handle = nullptr;
  std::string properties = {};
};

// Operations on values of four dimensions.
class CudnnGraph {
 public:
  using Sizes = std::array<int64_t, 4>;
  using Value = int64_t;  // its unique id in plans, too
  static constexpr Value kNone = -1;

  // A tensor in memory, aligned to 16 bytes.
  Value Memory(const Sizes& sizes, const Sizes& strides, cudnnDataType_t type);
  // An f32 number on the host.
  Value Scalar();
  // The result of an operation, visible only inside the graph.
  Value Virtual(const Sizes& sizes, cudnnDataType_t type = CUDNN_DATA_FLOAT);
  Value Virtual(const Sizes& sizes, const Sizes& strides, cudnnDataType_t type);
  const Sizes& sizes(Value value) const { return sizes_[static_cast<size_t>(value)]; }

  // y = op(x, b, t); broadcasts sizes of 1. The second form makes y, of x's sizes.
  void Pointwise(cudnnPointwiseMode_t mode, Value x, Value b, Value t, Value y,
                 cudnnDataType_t compute = CUDNN_DATA_FLOAT);
  Value Pointwise(cudnnPointwiseMode_t mode, Value x, Value b = kNone, Value t = kNone);
  // An i32 tensor of `like`'s sizes: the index of each element along an axis.
  Value Index(Value like, int64_t axis);
  void Matmul(Value a, Value b, Value c);
  // Along the axes in which y has the smaller size.
  void Reduce(cudnnReduceTensorOp_t op, Value x, Value y);
  // The same elements at y's sizes and strides, converted to its type.
  void Reshape(Value x, Value y);

 private:
  friend class CudnnPlan;
  Value Add(const Sizes& sizes, const Sizes& strides, cudnnDataType_t type, bool is_virtual,
            bool by_value);
  const CudnnDescriptor& tensor(Value v) const { return tensors_[static_cast<size_t>(v)]; }
  void AddOperation(CudnnDescriptor operation, const char* what);

  std::deque<CudnnDescriptor> tensors_, helpers_, operations_;
  std::vector<Sizes> sizes_;
};

// How to run a graph: by the first engine of cuDNN's heuristic for which a plan can be made.
// Nothing is timed, so equal graphs get equal plans.
class CudnnPlan {
 public:
  // Throws Error with cuDNN's reason if it has none.
  CudnnPlan(CudnnGraph graph, const CudnnTarget& target);

  int64_t workspace_bytes() const { return workspace_bytes_; }
  // The engine and its settings, as cuDNN numbers them: "engine 6, knobs 7=0 14=1".
  const std::string& engine() const { return engine_; }

  // Submits it to the handle's stream. `values` has the addresses of all values of Memory (on the
  // device) and Scalar (on the host, read at once); `workspace` has workspace_bytes().
  void Run(cudnnHandle_t handle, std::span<const std::pair<CudnnGraph::Value, const void*>> values,
           void* workspace) const;

 private:
  bool Make(const CudnnDescriptor& config, const CudnnTarget& target, std::string* why_not);

  CudnnGraph graph_;
  std::optional<CudnnDescriptor> properties_, plan_;
  std::deque<CudnnDescriptor> made_of_;
  int64_t workspace_bytes_ = 0;
  std::string engine_;
};

}  // namespace lockstep::cuda
