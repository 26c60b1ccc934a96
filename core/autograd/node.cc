#include "core/autograd/node.h"

#include <atomic>
#include <utility>

#include "core/error.h"

namespace lockstep {
namespace {

std::atomic<uint64_t> next_sequence{1};
thread_local bool left_out = false;

}  // namespace

void NoteLeftOut() { left_out = true; }
bool TakeLeftOut() { return std::exchange(left_out, false); }

uint64_t NextSequence() { return next_sequence.load(std::memory_order_relaxed); }

Node::Node(const char* name)
    : name_(name),
      sequence_(next_sequence.fetch_add(1, std::memory_order_relaxed)),
      follows_left_out_(TakeLeftOut()) {}

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
  for (const Tensor* input : inputs) {
    Edge edge;
    if (const auto& meta = input->autograd()) edge = {meta->node, meta->output, meta->leaf};
    LS_CHECK(!edge.node || edge.node->sequence() < node->sequence(), "the node '", node->name(),
             "' was made before its input, by '", edge.node->name(),
             "': make it after all its inputs");
    node->inputs_.push_back(std::move(edge));
  }
  int index = 0;
  for (Tensor* output : outputs) {
    LS_CHECK(!output->requires_grad(), "output ", index, " of the node '", node->name(),
             "' already requires a gradient: Detach() it, or make a new tensor");
    node->outputs_.push_back({output->shape(), output->dtype(), output->device()});
    output->set_autograd(std::make_shared<AutogradMeta>(AutogradMeta{nullptr, node, index++}));
  }
}

}  // namespace lockstep
