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
    std::vector<Range> ranges;
  };
  std::vector<Node> nodes;
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
    program->nodes.push_back({node->work.type, node->work.run, {}, {}, node->work.ranges});
  }
  for (const auto& node : graph.nodes) {
    for (const CUgraphNode_st* earlier : node->after) {
      program->nodes[node->index].after.push_back(earlier->index);
      program->nodes[earlier->index].before.push_back(node->index);
    }
  }
  return program;
}

// Whether nodes wait for each other in a circle.
bool HasCycle(const Program& program) {
  std::vector<size_t> missing, ready;
  for (size_t j = 0; j < program.nodes.size(); ++j) {
    missing.push_back(program.nodes[j].after.size());
    if (missing.back() == 0) ready.push_back(j);
  }
  size_t reached = 0;
  for (; !ready.empty(); ++reached) {
    const size_t node = ready.back();
    ready.pop_back();
    for (const size_t later : program.nodes[node].before) {
      if (--missing[later] == 0) ready.push_back(later);
    }
  }
  return reached < program.nodes.size();
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

cudaError_t Clone(cudaGraph_t* result, cudaGraph_t graph) {
  const Lock lock(GetState().mutex);
  if (result == nullptr || !IsGraph(lock, graph)) return cudaErrorInvalidValue;
  auto clone = std::make_unique<CUgraph_st>();
  for (const auto& node : graph->nodes) {
    clone->nodes.push_back(std::make_unique<CUgraphNode_st>());
    clone->nodes.back()->index = node->index;
    clone->nodes.back()->work = node->work;
  }
  for (const auto& node : graph->nodes) {
    for (const CUgraphNode_st* earlier : node->after) {
      clone->nodes[node->index]->after.push_back(clone->nodes[earlier->index].get());
    }
  }
  *result = clone.release();
  Adopt(lock, *result);
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
  std::shared_ptr<const Program> program = Compile(*graph);
  if (HasCycle(*program)) return cudaErrorInvalidValue;
  *result = new CUgraphExec_st;
  (*result)->program = std::move(program);
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
  for (const Program::Node& node : exec->program->nodes) {
    work.ranges.insert(work.ranges.end(), node.ranges.begin(), node.ranges.end());
  }
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
bool IsGraph(const Lock&, CUgraph_st* graph) { return Graphs().count(graph) > 0; }

cudaError_t SetNode(cudaGraphExec_t exec, cudaGraphNode_t node, Work work) {
  std::shared_ptr<const Program> old;  // Destroyed without the lock.
  const Lock lock(GetState().mutex);
  if (Execs().count(exec) == 0 || node == nullptr || node->index >= exec->program->nodes.size() ||
      exec->program->nodes[node->index].type != work.type) {
    return cudaErrorInvalidValue;
  }
  auto program = std::make_shared<Program>(*exec->program);
  program->nodes[node->index].run = std::move(work.run);
  program->nodes[node->index].ranges = std::move(work.ranges);
  old = std::exchange(exec->program, std::move(program));
  return cudaSuccess;
}

}  // namespace cudasim::runtime

using cudasim::runtime::Return;

cudaError_t cudaGraphCreate(cudaGraph_t* pGraph, unsigned int flags) {
  return Return(cudasim::runtime::CreateGraph(pGraph, flags));
}

cudaError_t cudaGraphClone(cudaGraph_t* pGraphClone, cudaGraph_t originalGraph) {
  return Return(cudasim::runtime::Clone(pGraphClone, originalGraph));
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
