#include "core/error.h"
#include "core/system/shared_library.h"
#include "kernels/attention/cudnn_graph.h"

namespace lockstep::cuda {
namespace {

CudnnApi Load() {
  const SharedLibrary library({.name = "cuDNN",
                               .files = {"libcudnn.so.9"},
                               .install = "NVIDIA's libcudnn9, 9.10.2 or newer"});
  CudnnApi api;
  library.Find("cudnnGetVersion", &api.GetVersion);
  library.Find("cudnnGetErrorString", &api.GetErrorString);
  library.Find("cudnnGetLastErrorString", &api.GetLastErrorString);
  library.Find("cudnnCreate", &api.Create);
  library.Find("cudnnSetStream", &api.SetStream);
  library.Find("cudnnBackendCreateDescriptor", &api.CreateDescriptor);
  library.Find("cudnnBackendDestroyDescriptor", &api.DestroyDescriptor);
  library.Find("cudnnBackendSetAttribute", &api.SetAttribute);
  library.Find("cudnnBackendGetAttribute", &api.GetAttribute);
  library.Find("cudnnBackendFinalize", &api.Finalize);
  library.Find("cudnnBackendExecute", &api.Execute);
  const size_t version = api.GetVersion();
  if (version < kCudnnMinVersion) {
    throw Error(StrCat("cuDNN ", version, " is older than ", kCudnnMinVersion, " (9.10.2)"));
  }
  return api;
}

}  // namespace

const CudnnApi& Cudnn() {
  static const CudnnApi api = Load();
  return api;
}

void CheckCudnn(cudnnStatus_t status, const char* doing) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  std::array<char, 1024> said{};
  Cudnn().GetLastErrorString(said.data(), said.size());
  throw Error(StrCat("cuDNN: ", doing, ": ", Cudnn().GetErrorString(status), ": ", said.data()));
}

// ---- Descriptors. ----

CudnnDescriptor::CudnnDescriptor(cudnnBackendDescriptorType_t type) {
  CheckCudnn(Cudnn().CreateDescriptor(type, &descriptor_), "making a descriptor");
}

CudnnDescriptor::~CudnnDescriptor() {
  if (descriptor_ != nullptr) Cudnn().DestroyDescriptor(descriptor_);
}

void CudnnDescriptor::SetBytes(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                               int64_t n, const void* values) {
  const cudnnStatus_t status = Cudnn().SetAttribute(descriptor_, name, type, n, values);
  if (status != CUDNN_STATUS_SUCCESS) {
    CheckCudnn(status, StrCat("setting attribute ", static_cast<int>(name)).c_str());
  }
}

void CudnnDescriptor::Finalize(const char* what) {
  CheckCudnn(Cudnn().Finalize(descriptor_), what);
}

int64_t CudnnDescriptor::GetInt(cudnnBackendAttributeName_t name,
                                cudnnBackendAttributeType_t type) const {
  int64_t value = 0, count = 0;  // enumerations are narrower, and little-endian like all else
  CheckCudnn(Cudnn().GetAttribute(descriptor_, name, type, 1, &count, &value),
             "reading an attribute");
  return value;
}

// ---- The graph. ----

CudnnGraph::Value CudnnGraph::Add(const Sizes& sizes, const Sizes& strides, cudnnDataType_t type,
                                  bool is_virtual, bool by_value) {
  const auto value = static_cast<Value>(tensors_.size());
  CudnnDescriptor tensor(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  tensor.Set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type)
      .Set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, std::span<const int64_t>(sizes))
      .Set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, std::span<const int64_t>(strides))
      .Set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, value)
      .Set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, int64_t{16})
      .Set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, is_virtual)
      .Set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, by_value)
      .Finalize("a tensor");
  tensors_.push_back(std::move(tensor));
  sizes_.push_back(sizes);
  return value;
}

CudnnGraph::Value CudnnGraph::Memory(const Sizes& sizes, const Sizes& strides,
                                     cudnnDataType_t type) {
  return Add(sizes, strides, type, false, false);
}

CudnnGraph::Value CudnnGraph::Scalar() {
  return Add({1, 1, 1, 1}, {1, 1, 1, 1}, CUDNN_DATA_FLOAT, false, true);
}

CudnnGraph::Value CudnnGraph::Virtual(const Sizes& sizes, cudnnDataType_t type) {
  const auto [b, h, m, n] = sizes;
  return Virtual(sizes, {h * m * n, m * n, n, 1}, type);
}

CudnnGraph::Value CudnnGraph::Virtual(const Sizes& sizes, const Sizes& strides,
                                      cudnnDataType_t type) {
  return Add(sizes, strides, type, true, false);
}

void CudnnGraph::AddOperation(CudnnDescriptor operation, const char* what) {
  operation.Finalize(what);
  operations_.push_back(std::move(operation));
}

void CudnnGraph::Pointwise(cudnnPointwiseMode_t mode, Value x, Value b, Value t, Value y,
                           cudnnDataType_t compute) {
  CudnnDescriptor& pointwise = helpers_.emplace_back(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  pointwise.Set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode)
      .Set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, compute)
      .Finalize("a pointwise operation");
  CudnnDescriptor operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  operation.Set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, pointwise)
      .Set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, tensor(x));
  if (b != kNone) operation.Set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, tensor(b));
  if (t != kNone) operation.Set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, tensor(t));
  operation.Set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, tensor(y));
  AddOperation(std::move(operation), "a pointwise operation's values");
}

CudnnGraph::Value CudnnGraph::Pointwise(cudnnPointwiseMode_t mode, Value x, Value b, Value t) {
  const Value y = Virtual(sizes(x));
  Pointwise(mode, x, b, t, y);
  return y;
}

CudnnGraph::Value CudnnGraph::Index(Value like, int64_t axis) {
  const Value y = Virtual(sizes(like), CUDNN_DATA_INT32);
  CudnnDescriptor& pointwise = helpers_.emplace_back(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  pointwise.Set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, CUDNN_POINTWISE_GEN_INDEX)
      .Set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT)
      .Set(CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, axis)
      .Finalize("an index");
  CudnnDescriptor operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  operation.Set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, pointwise)
      .Set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, tensor(like))
      .Set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, tensor(y));
  AddOperation(std::move(operation), "an index's values");
  return y;
}

void CudnnGraph::Matmul(Value a, Value b, Value c) {
  CudnnDescriptor& matmul = helpers_.emplace_back(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  matmul.Set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT)
      .Finalize("a product");
  CudnnDescriptor operation(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  operation.Set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, tensor(a))
      .Set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, tensor(b))
      .Set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, tensor(c))
      .Set(CUDNN_ATTR_OPERATION_MATMUL_DESC, matmul);
  AddOperation(std::move(operation), "a product's values");
}

void CudnnGraph::Reduce(cudnnReduceTensorOp_t op, Value x, Value y) {
  CudnnDescriptor& reduction = helpers_.emplace_back(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  reduction.Set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, op)
      .Set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT)
      .Finalize("a reduction");
  CudnnDescriptor operation(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  operation.Set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, tensor(x))
      .Set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, tensor(y))
      .Set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, reduction);
  AddOperation(std::move(operation), "a reduction's values");
}

void CudnnGraph::Reshape(Value x, Value y) {
  CudnnDescriptor operation(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  operation.Set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, tensor(x))
      .Set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, tensor(y));
  AddOperation(std::move(operation), "a reshape's values");
}

// ---- The plan. ----

namespace {

// The descriptors that an attribute holds.
std::deque<CudnnDescriptor> GetDescriptors(const CudnnDescriptor& of,
                                           cudnnBackendAttributeName_t name,
                                           cudnnBackendDescriptorType_t type, int64_t most) {
  std::deque<CudnnDescriptor> all;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (int64_t i = 0; i < most; ++i) raw.push_back(all.emplace_back(type).get());
  int64_t count = 0;
  CheckCudnn(
      Cudnn().GetAttribute(of.get(), name, CUDNN_TYPE_BACKEND_DESCRIPTOR, most, &count, raw.data()),
      "asking for descriptors");
  while (static_cast<int64_t>(all.size()) > count) all.pop_back();
  return all;
}

// See CudnnPlan::engine().
std::string DescribeEngine(const CudnnDescriptor& config) {
  constexpr int64_t kMostKnobs = 64;
  const auto engines =
      GetDescriptors(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_BACKEND_ENGINE_DESCRIPTOR, 1);
  if (engines.empty()) return "an unnamed engine";
  std::string text =
      StrCat("engine ", engines.front().GetInt(CUDNN_ATTR_ENGINE_GLOBAL_INDEX), ", knobs");
  for (const CudnnDescriptor& knob :
       GetDescriptors(config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES,
                      CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, kMostKnobs)) {
    text += StrCat(" ", knob.GetInt(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE), "=",
                   knob.GetInt(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE));
  }
  return text;
}

}  // namespace

CudnnPlan::CudnnPlan(CudnnGraph graph, const CudnnTarget& target) : graph_(std::move(graph)) {
  constexpr int64_t kConfigs = 8;  // more than cuDNN names for attention
  if (target.handle == nullptr) {
    properties_.emplace(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    properties_
        ->Set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
              std::span<const char>(target.properties))
        .Finalize("a device's properties");
  }
  std::vector<cudnnBackendDescriptor_t> raw;
  for (const CudnnDescriptor& operation : graph_.operations_) raw.push_back(operation.get());
  CudnnDescriptor& operations = made_of_.emplace_back(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  operations.Set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                 std::span<const cudnnBackendDescriptor_t>(raw));
  if (target.handle != nullptr) {
    operations.Set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, target.handle);
  }
  operations.Finalize("a graph");
  CudnnDescriptor& heuristic = made_of_.emplace_back(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristic.Set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, operations)
      .Set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, CUDNN_HEUR_MODE_A);
  if (properties_) heuristic.Set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, *properties_);
  heuristic.Finalize("a heuristic for the graph");

  std::string why_not = "its heuristic names no engine";
  for (CudnnDescriptor& config : GetDescriptors(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                                CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, kConfigs)) {
    if (Make(config, target, &why_not)) {
      engine_ = DescribeEngine(config);
      made_of_.push_back(std::move(config));
      return;
    }
  }
  throw Error(StrCat("cuDNN has no plan: ", why_not));
}

bool CudnnPlan::Make(const CudnnDescriptor& config, const CudnnTarget& target,
                     std::string* why_not) {
  try {
    if (properties_) {
      workspace_bytes_ = config.GetInt(CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE);
      return true;
    }
    CudnnDescriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    plan.Set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config)
        .Set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, target.handle)
        .Finalize("a plan");
    workspace_bytes_ = plan.GetInt(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
    plan_ = std::move(plan);
    return true;
  } catch (const Error& error) {  // the next engine may work
    *why_not = error.what();
    return false;
  }
}

void CudnnPlan::Run(cudnnHandle_t handle,
                    std::span<const std::pair<CudnnGraph::Value, const void*>> values,
                    void* workspace) const {
  std::vector<int64_t> ids;
  std::vector<const void*> addresses;
  for (const auto& [id, address] : values) {
    ids.push_back(id);
    addresses.push_back(address);
  }
  CudnnDescriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.Set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, std::span<const int64_t>(ids))
      .Set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR,
           std::span<const void* const>(addresses))
      .Set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace)
      .Finalize("the tensors of a plan");
  CheckCudnn(Cudnn().Execute(handle, plan_->get(), pack.get()), "running a plan");
}

}  // namespace lockstep::cuda
