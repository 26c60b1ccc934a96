#include "core/autograd/function.h"

#include <algorithm>
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

void Saved::Keep(const Tensor& tensor) {
  if (what_ != nullptr) tensors_.emplace_back(tensor, what_);
}

Tensor Saved::operator[](size_t i) const {
  LS_CHECK(i < tensors_.size(), "backward of the function '", name_, "' asks for saved tensor ", i,
           ", but its forward kept ", tensors_.size(), ": call saved.Keep there");
  return tensors_[i].Unpack();
}

bool Saved::Needs(size_t i) const {
  LS_CHECK(i < needs_.size(), "saved.Needs(", i, ") in the function '", name_, "', which has ",
           needs_.size(), " inputs to ask for: call it in backward");
  return needs_[i];
}

internal::FunctionName::FunctionName(const std::string& text)
    : name(Permanent(text)),
      what_it_saved(Permanent(StrCat("a tensor that the function '", text, "' saved"))) {}

class FunctionNode : public Node {
 public:
  FunctionNode(const internal::FunctionName& name, internal::FunctionBackward backward)
      : Node(name.name), backward_(std::move(backward)) {
    saved.name_ = name.name;
    saved.what_ = name.what_it_saved;
  }

  // Where nothing is recorded.
  static Saved Nothing(const internal::FunctionName& name) {
    Saved saved;
    saved.name_ = name.name;
    return saved;
  }

  void Backward(std::span<const Tensor> grads, const std::vector<bool>& needs,
                std::span<GradSink> sinks) override {
    saved.needs_ = needs;
    internal::Tensors of_results(differentiable.size());
    auto grad = grads.begin();
    for (size_t i = 0; i < of_results.size(); ++i) {
      if (differentiable[i]) of_results[i] = *grad++;
    }
    const Unwritten unwritten(of_results);
    const internal::Tensors given = backward_(saved, of_results);
    unwritten.Check("backward of the function '", name(), "' wrote to the gradient of result ");
    LS_CHECK(given.size() == needs.size(), "backward of the function '", name(), "' returned ",
             given.size(), " gradients for ", needs.size(),
             " inputs: return one for each, undefined where the input needs none");
    for (size_t i = 0; i < given.size(); ++i) {
      LS_CHECK(!needs[i] || given[i].defined(), "backward of the function '", name(),
               "' gave no gradient for its input ", i,
               ", which needs one; where it is zero, return Tensor::Zeros");
      if (needs[i]) sinks[i].Put(given[i]);
    }
  }
  void Release() override {
    saved.tensors_.clear();
    backward_ = nullptr;  // with all that it holds
  }

  Saved saved;
  std::vector<bool> differentiable;  // by result

 private:
  internal::FunctionBackward backward_;
};

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
  Saved none = FunctionNode::Nothing(name);
  Tensors results;
  const Unwritten unwritten(detached);
  {
    const NoGrad no_grad;
    results = forward(node ? node->saved : none, detached);
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
  if (record && !to.empty()) Record(node, from, to);
  return results;
}

}  // namespace lockstep::ops
