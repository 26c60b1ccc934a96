#include "core/autograd/node.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "core/autograd/op_observer.h"
#include "core/error.h"
#include "core/step_state.h"

namespace lockstep {
namespace {

std::atomic<uint64_t> next_sequence{1};

}  // namespace

uint64_t NextSequence() { return next_sequence.load(std::memory_order_relaxed); }

Node::Node(const char* name)
    : name_(name), sequence_(next_sequence.fetch_add(1, std::memory_order_relaxed)) {}

Node::~Node() {
  std::vector<std::shared_ptr<Node>> dying;
  auto take = [&dying](std::vector<Edge>& edges) {
    for (Edge& edge : edges) {
      if (edge.node) dying.push_back(std::move(edge.node));
    }
  };
  take(inputs_);
  while (!dying.empty()) {
    std::shared_ptr<Node> node = std::move(dying.back());
    dying.pop_back();
    if (node.use_count() == 1) take(node->inputs_);
  }
}

bool NeedsGrad(std::span<const Tensor* const> inputs) {
  if (!GradEnabled()) return false;
  for (const Tensor* t : inputs) {
    if (t->requires_grad()) return true;
  }
  return false;
}
bool NeedsGrad(std::initializer_list<const Tensor*> inputs) {
  return NeedsGrad(std::span(inputs.begin(), inputs.size()));
}

void Record(std::shared_ptr<Node> node, std::span<const Tensor* const> inputs,
            std::span<Tensor* const> outputs) {
  if (!node) {
    if (internal::OpsAreObserved() && GradEnabled() && CurrentStepState() != nullptr) {
      internal::TellOfOp([&](OpObserver& o) { o.OnForward(nullptr, inputs, outputs); });
    }
    const auto evaluated = [](const Tensor* x) {
      return x->autograd() && x->autograd()->evaluated;
    };
    if (std::ranges::none_of(inputs, evaluated)) return;
    for (Tensor* output : outputs) *output = Evaluated(*output);
    return;
  }
  for (const Tensor* input : inputs) {
    const Edge edge = input->autograd() ? *input->autograd() : Edge();
    LS_CHECK(!edge.node || edge.node->sequence() < node->sequence(), "the node '", node->name(),
             "' was made before its input, by '", edge.node->name(),
             "': make it after all its inputs");
    LS_INVARIANT(!edge.leaf || edge.leaf->shape() == input->shape(), "the gradient of '",
                 edge.leaf->name(), "' has the shape ", edge.leaf->shape(), ", but the input is ",
                 input->Describe());
    node->input_specs_.push_back(input->defined()
                                     ? TensorSpec{input->shape(), input->dtype(), input->device()}
                                     : TensorSpec());
    node->inputs_.push_back(edge);
  }
  int index = 0;
  for (Tensor* output : outputs) {
    LS_CHECK(!output->requires_grad(), "output ", index, " of the node '", node->name(),
             "' already requires a gradient: Detach() it, or make a new tensor");
    node->outputs_.push_back({{output->shape(), output->dtype(), output->device()}});
    output->set_autograd(std::make_shared<Edge>(Edge{node, index++, nullptr}));
  }
  internal::TellOfOp([&](OpObserver& o) { o.OnForward(node.get(), inputs, outputs); });
}

std::shared_ptr<Node> MakeOpNode(const char* name, std::span<const Kept> keep,
                                 OpBackward backward) {
  class OpNode : public Node {
   public:
    OpNode(const char* name, std::span<const Kept> keep, OpBackward backward)
        : Node(name), backward_(std::move(backward)) {
      for (const auto& [tensor, what] : keep) Save(tensor, what);
    }
    void Backward(Gradients& grads) override { backward_(saved(), grads); }
    void Release() override { backward_ = nullptr; }

   private:
    OpBackward backward_;
  };
  return std::make_shared<OpNode>(name, keep, std::move(backward));
}

}  // namespace lockstep
