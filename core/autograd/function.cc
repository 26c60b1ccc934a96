#include "core/autograd/function.h"

#include <mutex>
#include <set>

#include "core/autograd/node.h"

namespace lockstep::ops {
namespace {

// The same text for as long as the program runs: errors of graphs name functions that may be gone.
const char* Permanent(const std::string& text) {
  static std::mutex mutex;
  static auto& texts = *new std::set<std::string>();
  const std::lock_guard lock(mutex);
  return texts.insert(text).first->c_str();
}

// Checks that a function did not write to its arguments, whose memory it shares.
class Unwritten {
 public:
  explicit Unwritten(const std::vector<Tensor>& tensors) : tensors_(tensors) {
    for (const Tensor& t : tensors) versions_.push_back(Version(t));
  }
  template <class... Args>
  void Check(const Args&... what) const {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      LS_CHECK(Version(tensors_[i]) == versions_[i], what..., i,
               ", whose memory others share: work on a Clone(), or return a new tensor");
    }
  }

 private:
  static uint64_t Version(const Tensor& t) { return t.defined() ? t.storage().version() : 0; }

  const std::vector<Tensor>& tensors_;
  std::vector<uint64_t> versions_;
};

}  // namespace

internal::FunctionName::FunctionName(const std::string& text)
    : name(Permanent(text)),
      what_it_saved(Permanent(StrCat("a tensor that the function '", text, "' saved"))) {}

class FunctionNode : public Node {
 public:
  FunctionNode(const internal::FunctionName& name, internal::FunctionBackward backward)
      : Node(name.name), what_it_saved_(name.what_it_saved), backward_(std::move(backward)) {}

  // Where nothing is recorded, `node` is null.
  static internal::Tensors Forward(const internal::FunctionName& name, FunctionNode* node,
                                   const internal::FunctionForward& forward,
                                   const internal::Tensors& inputs) {
    Saved saved(name.name, node);
    return forward(saved, inputs);
  }

  void Backward(Gradients& grads) override {
    internal::Tensors of_results(differentiable.size());
    size_t next = 0;
    for (size_t i = 0; i < of_results.size(); ++i) {
      if (differentiable[i]) of_results[i] = grads[next++];
    }
    const Unwritten unwritten(of_results);
    internal::Tensors given = backward_(Saved(name(), this, &grads), of_results);
    unwritten.Check("backward of the function '", name(), "' wrote to the gradient of result ");
    LS_CHECK(given.size() == grads.inputs(), "backward of the function '", name(), "' returned ",
             given.size(), " gradients for ", grads.inputs(),
             " inputs: return one for each, undefined where the input needs none");
    for (size_t i = 0; i < given.size(); ++i) {
      if (!grads.needs(i)) continue;
      LS_CHECK(given[i].defined(), "backward of the function '", name(),
               "' gave no gradient for its input ", i,
               ", which needs one; where it is zero, return Tensor::Zeros");
      grads.Put(i, std::move(given[i]));
    }
  }
  void Release() override { backward_ = nullptr; }  // with all that it holds

  void Keep(const Tensor& tensor) { Save(tensor, what_it_saved_); }
  const SavedTensors& kept() { return saved(); }

  std::vector<bool> differentiable;  // by result

 private:
  const char* const what_it_saved_;
  internal::FunctionBackward backward_;
};

void Saved::Keep(const Tensor& tensor) {
  if (node_ != nullptr) node_->Keep(tensor);
}

Tensor Saved::operator[](size_t i) const {
  const size_t kept = node_ != nullptr ? node_->kept().size() : 0;
  LS_CHECK(i < kept, "backward of the function '", name_, "' asks for saved tensor ", i,
           ", but its forward kept ", kept, ": call saved.Keep there");
  return node_->kept()[i];
}

bool Saved::Needs(size_t i) const {
  const size_t inputs = grads_ != nullptr ? grads_->inputs() : 0;
  LS_CHECK(i < inputs, "saved.Needs(", i, ") in the function '", name_, "', which has ", inputs,
           " inputs to ask for: call it in backward");
  return grads_->needs(i);
}

internal::Tensors internal::RunFunction(const FunctionName& name, const Tensors& inputs,
                                        const FunctionForward& forward,
                                        const FunctionBackward& backward) {
  Tensors detached;
  std::vector<const Tensor*> from;
  for (size_t i = 0; i < inputs.size(); ++i) {
    detached.push_back(inputs[i].defined() ? inputs[i].Detach() : Tensor());
    from.push_back(&inputs[i]);
  }
  const bool record = NeedsGrad(from);
  const auto node = record ? std::make_shared<FunctionNode>(name, backward) : nullptr;
  Tensors results;
  const Unwritten unwritten(detached);
  {
    const NoGrad no_grad;
    results = FunctionNode::Forward(name, node.get(), forward, detached);
  }
  unwritten.Check("forward of the function '", name.name, "' wrote to its input ");
  std::vector<Tensor*> to;
  for (size_t i = 0; i < results.size(); ++i) {
    LS_CHECK(results[i].defined(), "result ", i, " of the function '", name.name, "' is undefined");
    results[i] = results[i].Detach();
    const bool differentiable = IsFloating(results[i].dtype());
    if (differentiable) to.push_back(&results[i]);
    if (node) node->differentiable.push_back(differentiable);
  }
  if (!to.empty()) Record(node, from, to);
  return results;
}

}  // namespace lockstep::ops
