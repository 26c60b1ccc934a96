// Instantiated graphs: launching, updating.
#include <algorithm>
#include <set>
#include <utility>

#include "capture.h"
#include "cudasim/settings.h"

namespace cudasim::runtime {

// A graph as it runs. Immutable, so that launches in flight keep the version they began with.
struct Program {
  struct Node {
    cudaGraphNodeType type;
    std::function<cudaError_t()> run;
    std::vector<size_t> after;
    std::vector<size_t> before;
  };
  std::vector<Node> nodes;
  std::vector<Range> ranges;
};

}  // namespace cudasim::runtime

struct CUgraphExec_st {
  std::shared_ptr<const cudasim::runtime::Program> program;
  std::shared_ptr<cudasim::runtime::Op> last;  // Launches of the same graph follow each other.
};

namespace cudasim::runtime {
namespace {

std::set<CUgraph_st*>& Graphs() {
  static auto* const graphs = new std::set<CUgraph_st*>;
  return *graphs;
}

std::set<CUgraphExec_st*>& Execs() {
  static auto* const execs = new std::set<CUgraphExec_st*>;
  return *execs;
}

std::shared_ptr<const Program> Compile(const CUgraph_st& graph) {
  auto program = std::make_shared<Program>();
  for (const auto& node : graph.nodes) {
    Program::Node compiled = {node->work.type, node->work.run, {}, {}};
    for (const CUgraphNode_st* earlier : node->after) {
      compiled.after.push_back(earlier->index);
      program->nodes[earlier->index].before.push_back(node->index);
    }
    program->nodes.push_back(std::move(compiled));
    program->ranges.insert(program->ranges.end(), node->work.ranges.begin(),
                           node->work.ranges.end());
  }
  return program;
}

// Runs nodes one after the other in an order that their dependencies allow: as captured, or with
// CUDASIM_DELAY the latest possible first, so that a missing dependency shows.
cudaError_t RunProgram(const Program& program, bool latest_first) {
  std::vector<size_t> missing;
  std::set<size_t> ready;
  for (size_t i = 0; i < program.nodes.size(); ++i) {
    missing.push_back(program.nodes[i].after.size());
    if (missing.back() == 0) ready.insert(i);
  }
  while (!ready.empty()) {
    const auto next = latest_first ? std::prev(ready.end()) : ready.begin();
    const Program::Node& node = program.nodes[*next];
    ready.erase(next);
    if (node.run) {
      const cudaError_t error = node.run();
      if (error != cudaSuccess) return error;
    }
    for (const size_t later : node.before) {
      if (--missing[later] == 0) ready.insert(later);
    }
  }
  return cudaSuccess;
}

cudaError_t CreateGraph(cudaGraph_t* result, unsigned flags) {
  const Lock lock(GetState().mutex);
  if (result == nullptr || flags != 0) return cudaErrorInvalidValue;
  *result = new CUgraph_st;
  Graphs().insert(*result);
  return cudaSuccess;
}

cudaError_t DestroyGraph(cudaGraph_t graph) {
  const CUgraph_st* owned = nullptr;
  {
    const Lock lock(GetState().mutex);
    if (Graphs().erase(graph) == 0) return cudaErrorInvalidValue;
    owned = graph;
  }
  delete owned;
  return cudaSuccess;
}

cudaError_t Instantiate(cudaGraphExec_t* result, cudaGraph_t graph, unsigned long long flags) {
  const Lock lock(GetState().mutex);
  if (result == nullptr || Graphs().count(graph) == 0) return cudaErrorInvalidValue;
  if (const cudaError_t error = Sticky(lock); error != cudaSuccess) return error;
  constexpr unsigned long long kKnown = cudaGraphInstantiateFlagAutoFreeOnLaunch |
                                        cudaGraphInstantiateFlagUpload |
                                        cudaGraphInstantiateFlagUseNodePriority;
  if ((flags & cudaGraphInstantiateFlagDeviceLaunch) != 0) return cudaErrorNotSupported;
  if ((flags & ~kKnown) != 0) return cudaErrorInvalidValue;
  *result = new CUgraphExec_st;
  (*result)->program = Compile(*graph);
  Execs().insert(*result);
  return cudaSuccess;
}

cudaError_t DestroyExec(cudaGraphExec_t exec) {
  std::shared_ptr<const Program> program;  // Destroyed without the lock.
  const Lock lock(GetState().mutex);
  if (Execs().erase(exec) == 0) return cudaErrorInvalidValue;
  program = exec->program;
  delete exec;
  return cudaSuccess;
}

cudaError_t LaunchGraph(cudaGraphExec_t exec, cudaStream_t handle) {
  Lock lock(GetState().mutex);
  if (const cudaError_t error = Sticky(lock); error != cudaSuccess) return error;
  if (Execs().count(exec) == 0) return cudaErrorInvalidValue;
  CUstream_st* const stream = Resolve(lock, handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  Work work;
  work.type = cudaGraphNodeTypeGraph;
  work.what = "cudaGraphLaunch of " + std::to_string(exec->program->nodes.size()) + " nodes";
  work.ranges = exec->program->ranges;
  if (exec->last != nullptr) work.waits = {exec->last};
  const bool latest_first = GetSettings().delay_ms > 0;
  work.run = [program = exec->program, latest_first] { return RunProgram(*program, latest_first); };
  if (stream->capture != nullptr) work.waits.clear();
  std::shared_ptr<Op> op;
  const cudaError_t error = SubmitLocked(lock, stream, std::move(work), &op);
  if (op != nullptr) exec->last = op;
  return error;
}

cudaGraphExecUpdateResult Compare(const Program& old, const CUgraph_st& graph, size_t* node) {
  *node = 0;
  if (old.nodes.size() != graph.nodes.size()) return cudaGraphExecUpdateErrorTopologyChanged;
  for (const auto& now : graph.nodes) {
    *node = now->index;
    const Program::Node& before = old.nodes[now->index];
    if (before.type != now->work.type) return cudaGraphExecUpdateErrorNodeTypeChanged;
    if (before.after.size() != now->after.size()) return cudaGraphExecUpdateErrorTopologyChanged;
    for (const CUgraphNode_st* earlier : now->after) {
      if (std::find(before.after.begin(), before.after.end(), earlier->index) ==
          before.after.end()) {
        return cudaGraphExecUpdateErrorTopologyChanged;
      }
    }
  }
  return cudaGraphExecUpdateSuccess;
}

cudaError_t Update(cudaGraphExec_t exec, cudaGraph_t graph, cudaGraphExecUpdateResultInfo* info) {
  std::shared_ptr<const Program> old;  // Destroyed without the lock.
  const Lock lock(GetState().mutex);
  if (Execs().count(exec) == 0 || Graphs().count(graph) == 0) return cudaErrorInvalidValue;
  if (const cudaError_t error = Sticky(lock); error != cudaSuccess) return error;
  size_t node = 0;
  const cudaGraphExecUpdateResult result = Compare(*exec->program, *graph, &node);
  if (info != nullptr) {
    *info = {result, nullptr, nullptr};
    if (result != cudaGraphExecUpdateSuccess && node < graph->nodes.size()) {
      info->errorNode = graph->nodes[node].get();
    }
  }
  if (result != cudaGraphExecUpdateSuccess) return cudaErrorGraphExecUpdateFailure;
  old = std::move(exec->program);
  exec->program = Compile(*graph);
  return cudaSuccess;
}

cudaError_t Nodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  const Lock lock(GetState().mutex);
  if (Graphs().count(graph) == 0 || count == nullptr) return cudaErrorInvalidValue;
  if (nodes == nullptr) {
    *count = graph->nodes.size();
    return cudaSuccess;
  }
  for (size_t i = 0; i < *count; ++i) {
    nodes[i] = i < graph->nodes.size() ? graph->nodes[i].get() : nullptr;
  }
  *count = std::min(*count, graph->nodes.size());
  return cudaSuccess;
}

cudaError_t Edges(cudaGraph_t graph, cudaGraphNode_t* from, cudaGraphNode_t* to,
                  cudaGraphEdgeData* data, size_t* count) {
  const Lock lock(GetState().mutex);
  if (Graphs().count(graph) == 0 || count == nullptr || (from == nullptr) != (to == nullptr)) {
    return cudaErrorInvalidValue;
  }
  size_t found = 0;
  for (const auto& node : graph->nodes) {
    for (CUgraphNode_st* earlier : node->after) {
      if (from != nullptr && found < *count) {
        from[found] = earlier;
        to[found] = node.get();
        if (data != nullptr) data[found] = {};
      }
      ++found;
    }
  }
  *count = from == nullptr ? found : std::min(*count, found);
  return cudaSuccess;
}

}  // namespace

void Adopt(const Lock&, CUgraph_st* graph) { Graphs().insert(graph); }

}  // namespace cudasim::runtime

using cudasim::runtime::Return;

cudaError_t cudaGraphCreate(cudaGraph_t* pGraph, unsigned int flags) {
  return Return(cudasim::runtime::CreateGraph(pGraph, flags));
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return Return(cudasim::runtime::DestroyGraph(graph));
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* numNodes) {
  return Return(cudasim::runtime::Nodes(graph, nodes, numNodes));
}

cudaError_t cudaGraphGetEdges(cudaGraph_t graph, cudaGraphNode_t* from, cudaGraphNode_t* to,
                              cudaGraphEdgeData* edgeData, size_t* numEdges) {
  return Return(cudasim::runtime::Edges(graph, from, to, edgeData, numEdges));
}

cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* pType) {
  if (node == nullptr || pType == nullptr) return Return(cudaErrorInvalidValue);
  *pType = node->work.type;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* pGraphExec, cudaGraph_t graph,
                                 unsigned long long flags) {
  return Return(cudasim::runtime::Instantiate(pGraphExec, graph, flags));
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* pGraphExec, cudaGraph_t graph,
                                          unsigned long long flags) {
  return cudaGraphInstantiate(pGraphExec, graph, flags);
}

cudaError_t cudaGraphExecUpdate(cudaGraphExec_t hGraphExec, cudaGraph_t hGraph,
                                cudaGraphExecUpdateResultInfo* resultInfo) {
  return Return(cudasim::runtime::Update(hGraphExec, hGraph, resultInfo));
}

cudaError_t cudaGraphUpload(cudaGraphExec_t graphExec, cudaStream_t stream) {
  const cudasim::runtime::Lock lock(cudasim::runtime::GetState().mutex);
  if (cudasim::runtime::Execs().count(graphExec) == 0) return Return(cudaErrorInvalidValue);
  const bool known = cudasim::runtime::Resolve(lock, stream) != nullptr;
  return Return(known ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graphExec, cudaStream_t stream) {
  return Return(cudasim::runtime::LaunchGraph(graphExec, stream));
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graphExec) {
  return Return(cudasim::runtime::DestroyExec(graphExec));
}
