#include "core/autograd/engine.h"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>

#include "core/autograd/backward_parts.h"
#include "core/autograd/grad_hooks.h"
#include "core/autograd/op_observer.h"
#include "core/autograd/root_gradient.h"
#include "core/error.h"
#include "core/step_state.h"

namespace lockstep {
namespace {

thread_local bool graph_is_retained = true;

class RetainScope {
 public:
  explicit RetainScope(bool retain) : previous_(std::exchange(graph_is_retained, retain)) {}
  ~RetainScope() { graph_is_retained = previous_; }
  RetainScope(const RetainScope&) = delete;
  RetainScope& operator=(const RetainScope&) = delete;

 private:
  bool previous_;
};

// How many backwards this thread is in: nodes, hooks and observers may call Backward, too.
thread_local int backward_depth = 0;

struct DepthScope {
  DepthScope() { ++backward_depth; }
  ~DepthScope() { --backward_depth; }
  DepthScope(const DepthScope&) = delete;
  DepthScope& operator=(const DepthScope&) = delete;
};

Tensor RootGrad(const Tensor& root, const Tensor& given) {
  if (!given.defined()) {
    LS_CHECK(root.numel() == 1, "backward of ", root.Describe(),
             " needs a root gradient: only a tensor of one element has a default, 1");
    return Tensor::Full(root.shape(), 1.0, root.dtype(), root.device());
  }
  LS_CHECK(given.shape() == root.shape() && given.dtype() == root.dtype() &&
               given.device() == root.device(),
           "root gradient ", given.Describe(), " does not match its root, ", root.Describe());
  return given.Detach();
}

// Adds those that are not there yet.
void AddObservers(std::vector<BackwardObserver*>& to, const std::vector<BackwardObserver*>& more) {
  for (BackwardObserver* o : more) {
    if (std::find(to.begin(), to.end(), o) == to.end()) to.push_back(o);
  }
}

// Notifies each observer once, even one both given to backward and added to the leaf.
void NotifyLeafReady(Leaf& leaf, std::vector<BackwardObserver*> observers) {
  AddObservers(observers, leaf.observers());
  for (BackwardObserver* o : observers) o->OnLeafReady(leaf);
}

}  // namespace

// Where this backward's gradients of leaves with hooks are added up, until the hooks see them.
using HookedLeaves = std::unordered_map<const Leaf*, std::unique_ptr<Leaf>>;

struct DeferredGradients::Item {
  std::shared_ptr<Node> node;
  std::vector<Tensor> grads;
  std::vector<size_t> inputs;  // whose gradients were deferred
  bool retain = false;
  std::vector<BackwardObserver*> given;      // BackwardOptions::observers
  std::vector<std::shared_ptr<Leaf>> ready;  // leaves whose last addition this is
  std::vector<BackwardObserver*> end;        // in the last item: observers to notify of the end
  std::shared_ptr<HookedLeaves> hooked;      // of the backward that deferred it
};

DeferredGradients::DeferredGradients() = default;
DeferredGradients::DeferredGradients(DeferredGradients&&) noexcept = default;
DeferredGradients& DeferredGradients::operator=(DeferredGradients&&) noexcept = default;
DeferredGradients::~DeferredGradients() = default;
bool DeferredGradients::empty() const { return items_.empty(); }

class BackwardRun {
 public:
  BackwardRun(std::span<const Tensor> roots, const BackwardOptions& options) : options_(options) {
    LS_CHECK(!options.defer == (options.deferred == nullptr),
             "BackwardOptions: give both defer and deferred, or neither");
    BackwardOrder order = OrderBackward(roots);
    plan_.nodes = std::move(order.nodes);
    plan_.leaves = std::move(order.leaves);
    last_use_ = std::move(order.last_use);
    for (size_t i = 0; i < plan_.nodes.size(); ++i) index_[plan_.nodes[i].get()] = i;
    buffers_.resize(plan_.nodes.size());
    for (const auto& node : plan_.nodes) {
      for (const Edge& edge : node->inputs()) {
        if (edge.node) ++Buffer(*edge.node, edge.output).uses;
      }
    }
    for (const Tensor& root : roots) {
      const auto& meta = root.autograd();
      if (meta && meta->node) ++Buffer(*meta->node, meta->output).uses;
    }
  }

  void Run(std::span<const Tensor> roots, std::span<const Tensor> root_grads) {
    CheckNotReleased();
    plan_.default_root_grad = root_grads.empty();
    for (const Tensor& grad : root_grads) plan_.default_root_grad |= !grad.defined();
    const StepState* const step = StepUnderWay();
    if (step != nullptr && step->watch() != nullptr) step->watch()->CheckBackward(plan_.leaves);
    if (!options_.evaluation && !InBackward() && GoesThroughEvaluated(roots)) ThrowEvaluated();
    const LeafClaims claims(plan_.leaves);
    observers_ = options_.observers;
    for (const auto& leaf : plan_.leaves) AddObservers(observers_, leaf->observers());
    NoGrad no_grad;
    const DepthScope depth;
    std::optional<RootGradientScope> root;
    try {
      if (roots.size() == 1 && roots[0].numel() == 1 && !plan_.default_root_grad) {
        root.emplace(RootGrad(roots[0], root_grads[0]));  // of a loss
      }
      for (BackwardObserver* o : observers_) o->OnBegin(plan_);
      for (const auto& leaf : plan_.leaves) {
        if (!leaf->has_hooks()) continue;
        (*hooked_)[leaf.get()] = std::make_unique<Leaf>(leaf->shape(), leaf->grad_dtype());
      }
      PutRootGrads(roots, root_grads);
      TellReady(-1);
      for (size_t i = 0; i < plan_.nodes.size(); ++i) {
        EndRanges(plan_.nodes[i]->sequence());
        ranges_.Begin(plan_.nodes[i]->ranges_);
        RunNode(i);
        TellReady(static_cast<int64_t>(i));
      }
      EndRanges(0);
      if (deferred_any_) {
        options_.deferred->items_.back().end = observers_;
      } else {
        for (BackwardObserver* o : observers_) o->OnEnd();
      }
      if (backward_depth == 1) EndMicroBatch();
    } catch (...) {
      for (BackwardObserver* o : observers_) o->OnError();
      throw;
    }
  }

  // Computes the needed gradients, whose sinks are known.
  static void Execute(Node& node, Gradients& grads) {
    auto& inputs = grads.inputs_;
    for (size_t i = 0; i < inputs.size(); ++i) {
      for (size_t j = 0; j < i && inputs[i].needed; ++j) {
        if (inputs[j].needed && inputs[i].sink.SameAs(inputs[j].sink)) inputs[i].sink.ScratchOnly();
      }
    }
    internal::TellOfOp([&](OpObserver& o) { o.OnBackward(node, grads.of_outputs()); });
    node.Backward(grads);
    std::vector<Tensor> given;  // for those who observe
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!inputs[i].needed) continue;
      if (!inputs[i].given) ThrowNothingGiven(node, i);
      inputs[i].sink.Finish();
      inputs[i].needed = false;
      if (internal::OpsAreObserved()) given.push_back(inputs[i].sink.result());
    }
    internal::TellOfOp([&](OpObserver& o) { o.OnGradients(node, given); });
  }

  static void RunDeferred(std::vector<DeferredGradients::Item> items) {
    NoGrad no_grad;
    size_t next = 0;
    try {
      for (; next < items.size(); ++next) RunItem(items[next]);
    } catch (...) {
      std::vector<BackwardObserver*> waiting;
      for (; next < items.size(); ++next) AddObservers(waiting, items[next].end);
      for (BackwardObserver* o : waiting) o->OnError();
      throw;
    }
  }

 private:
  [[noreturn]] static void ThrowNothingGiven(const Node& node, size_t i) {
    throw ArgumentError(
        StrCat("the Backward of node '", node.name(), "' gave no gradient for its input ", i,
               ", of shape ", node.InputSpec(i).shape, ", which needs one: call grads.Put(", i,
               ", ...), or write to grads.Open(", i, "); where it is zero, put Tensor::Zeros"));
  }

  static void RunItem(DeferredGradients::Item& item) {
    std::vector<std::shared_ptr<Leaf>> leaves;
    for (const size_t i : item.inputs) leaves.push_back(item.node->inputs()[i].leaf);
    const LeafClaims claims(leaves);
    {
      Gradients grads(*item.node, std::move(item.grads));
      for (const size_t i : item.inputs) {
        GradSink sink = SinkOf(*item.node->inputs()[i].leaf, *item.hooked);
        grads.inputs_[i] = {.sink = std::move(sink), .needed = true};
      }
      const RetainScope scope(item.retain);
      Execute(*item.node, grads);
    }
    if (!item.retain) Release(*item.node);
    for (const auto& leaf : item.ready) Finish(*leaf, *item.hooked, item.given);
    for (BackwardObserver* o : item.end) o->OnEnd();
  }

  bool GoesThroughEvaluated(std::span<const Tensor> roots) const {
    bool evaluated = false;
    for (const Tensor& root : roots) evaluated |= root.autograd()->evaluated;
    const bool in_step = StepUnderWay() != nullptr;
    for (const auto& node : plan_.nodes) {
      for (const Edge& edge : node->inputs()) {
        // What needs no gradient may be evaluated ahead of a step: a teacher's targets.
        evaluated |= edge.evaluated && (edge.defined() || !in_step);
      }
    }
    return evaluated;
  }

  void CheckNotReleased() const {
    for (const auto& node : plan_.nodes) {
      if (!node->released_) continue;
      throw Error(StrCat("second backward through '", node->name(),
                         "': the first released what forward saved; run forward again, or keep it "
                         "in the first:\n  Backward(loss, {}, {.retain_graph = true});"));
    }
  }

  void PutRootGrads(std::span<const Tensor> roots, std::span<const Tensor> root_grads) {
    for (size_t i = 0; i < roots.size(); ++i) {
      SinkOf(*roots[i].autograd())
          .Put(RootGrad(roots[i], root_grads.empty() ? Tensor() : root_grads[i]));
    }
  }

  // The gradient of a node's output so far, and how many inputs and roots contribute to it.
  struct OutputGrad {
    Tensor grad;
    int uses = 0;
  };

  OutputGrad& Buffer(Node& node, int output) {
    auto& buffer = buffers_[index_.at(&node)];
    buffer.resize(node.outputs_.size());
    return buffer[output];
  }

  static GradSink SinkOf(Leaf& leaf, const HookedLeaves& hooked) {
    const auto apart = hooked.find(&leaf);
    return GradSink(apart == hooked.end() ? &leaf : apart->second.get());
  }

  GradSink SinkOf(const Edge& edge) {
    return edge.leaf ? SinkOf(*edge.leaf, *hooked_)
                     : GradSink(&Buffer(*edge.node, edge.output).grad);
  }

  // See Gradients::receiver. Hooks must see the gradient itself, with nothing of the receiver's
  // fused into it.
  Node* ReceiverOf(const Edge& edge) {
    if (!edge.node || options_.retain_graph ||
        edge.node->outputs_[static_cast<size_t>(edge.output)].has_hooks())
      return nullptr;
    return Buffer(*edge.node, edge.output).uses == 1 ? edge.node.get() : nullptr;
  }

  bool Deferred(const Edge& edge) const {
    return edge.leaf && options_.defer && options_.defer(*edge.leaf);
  }

  // The gradients of node i's outputs; none where nothing used them.
  std::vector<Tensor> TakeGradients(size_t i) {
    const Node& node = *plan_.nodes[i];
    std::vector<Tensor> grads(node.outputs_.size());
    for (size_t k = 0; k < buffers_[i].size(); ++k) grads[k] = std::move(buffers_[i][k].grad);
    buffers_[i].clear();
    if (std::ranges::none_of(grads, &Tensor::defined)) return {};
    for (size_t k = 0; k < grads.size(); ++k) {
      const Node::Output& output = node.outputs_[k];
      const TensorSpec& spec = output.spec;
      if (!grads[k].defined()) {
        grads[k] = Tensor::Zeros(spec.shape, spec.dtype, spec.device);
      } else if (output.has_hooks()) {
        grads[k] = RunGradHooks(*output.hooks, std::move(grads[k]),
                                StrCat("output ", k, " of '", node.name(), "'"));
      }
      LS_INVARIANT(grads[k].shape() == spec.shape && grads[k].dtype() == spec.dtype &&
                       grads[k].device() == spec.device,
                   "the gradient of '", node.name(), "' is ", grads[k].Describe(),
                   ", but its output ", k, " is ", spec.dtype, spec.shape, " on ", spec.device);
    }
    return grads;
  }

  void RunNode(size_t i) {
    Node& node = *plan_.nodes[i];
    Gradients grads(node, TakeGradients(i));
    std::vector<size_t> now, later;
    for (size_t j = 0; j < node.inputs().size() && !grads.of_outputs_.empty(); ++j) {
      const Edge& edge = node.inputs()[j];
      if (!edge.defined()) continue;
      (Deferred(edge) ? later : now).push_back(j);
    }
    const auto run = [&](std::span<const size_t> inputs, bool again) {
      if (inputs.empty()) return;
      for (const size_t j : inputs) {
        const Edge& edge = node.inputs()[j];
        grads.inputs_[j] = {.sink = SinkOf(edge), .needed = true, .receiver = ReceiverOf(edge)};
      }
      const RetainScope scope(options_.retain_graph || again);
      Execute(node, grads);
    };
    if (later.empty() && node.SplitsByInput() && IsAwaited(i)) {
      const auto others = std::stable_partition(
          now.begin(), now.end(), [&](size_t j) { return node.inputs()[j].leaf != nullptr; });
      run({now.begin(), others}, others != now.end());
      TellReady(static_cast<int64_t>(i));
      run({others, now.end()}, false);
    } else {
      run(now, !later.empty());
    }
    if (!later.empty()) {
      deferred_any_ = true;
      options_.deferred->items_.push_back({.node = plan_.nodes[i],
                                           .grads = std::move(grads.of_outputs_),
                                           .inputs = std::move(later),
                                           .retain = options_.retain_graph,
                                           .given = options_.observers,
                                           .hooked = hooked_});
    } else if (!options_.retain_graph) {
      Release(node);
    }
  }

  // Whether an observer awaits a leaf whose last addition comes from node i.
  bool IsAwaited(size_t i) const {
    const auto awaits = [](const BackwardObserver* o) { return o->awaits_leaves(); };
    for (size_t l = next_leaf_; l < plan_.leaves.size(); ++l) {
      if (last_use_[l] != static_cast<int64_t>(i)) break;
      if (std::ranges::any_of(options_.observers, awaits) ||
          std::ranges::any_of(plan_.leaves[l]->observers(), awaits)) {
        return true;
      }
    }
    return false;
  }

  static void Release(Node& node) {
    node.saved_.Reset();
    node.Release();
    node.released_ = true;
  }

  // Leaves are in the order of their last use, so one cursor is enough.
  void TellReady(int64_t position) {
    for (; next_leaf_ < plan_.leaves.size() && last_use_[next_leaf_] <= position; ++next_leaf_) {
      const auto& leaf = plan_.leaves[next_leaf_];
      if (options_.defer && options_.defer(*leaf) && deferred_any_) {
        options_.deferred->items_.back().ready.push_back(leaf);
        continue;
      }
      Finish(*leaf, *hooked_, options_.observers);
    }
  }

  // After the last addition to a leaf.
  static void Finish(Leaf& leaf, HookedLeaves& hooked,
                     const std::vector<BackwardObserver*>& given) {
    if (const auto apart = hooked.extract(&leaf)) {
      Tensor grad = std::exchange(apart.mapped(), nullptr)->grad();
      if (grad.defined()) {
        GradSink(&leaf).Put(
            RunGradHooks(*leaf.hooks_, std::move(grad), StrCat("'", leaf.name(), "'")));
      }
    }
    NotifyLeafReady(leaf, given);
  }

  // Ends the ranges that no node with a sequence of at most `sequence` belongs to.
  void EndRanges(uint64_t sequence) {
    const RetainScope scope(options_.retain_graph);
    ranges_.End(sequence);
  }

  const BackwardOptions& options_;
  BackwardPlan plan_;
  std::vector<int64_t> last_use_;
  std::unordered_map<Node*, size_t> index_;
  std::vector<std::vector<OutputGrad>> buffers_;  // for each node that has not run
  std::vector<BackwardObserver*> observers_;
  const std::shared_ptr<HookedLeaves> hooked_ = std::make_shared<HookedLeaves>();
  BackwardRanges ranges_;
  size_t next_leaf_ = 0;
  bool deferred_any_ = false;
};

bool GraphIsRetained() { return graph_is_retained; }

bool MayOverwrite(const Tensor& grad) {
  return !graph_is_retained && grad.storage().unique() && grad.is_contiguous();
}

void DeferredGradients::Run() { BackwardRun::RunDeferred(std::exchange(items_, {})); }

bool InBackward() { return backward_depth > 0; }

void Backward(std::span<const Tensor> roots, std::span<const Tensor> root_grads,
              const BackwardOptions& options) {
  LS_CHECK(root_grads.empty() || root_grads.size() == roots.size(), "Backward of ", roots.size(),
           " roots got ", root_grads.size(), " root gradients: give one per root, or none");
  for (const Tensor& root : roots) {
    LS_CHECK(root.requires_grad(), "Backward of a tensor for which nothing was recorded (",
             root.defined() ? root.Describe() : "undefined",
             "): was it computed under NoGrad, or from inputs that do not require gradients?");
  }
  BackwardRun(roots, options).Run(roots, root_grads);
}

void Backward(const Tensor& root, const Tensor& root_grad, const BackwardOptions& options) {
  Backward(std::span(&root, 1), std::span(&root_grad, 1), options);
}

}  // namespace lockstep
