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

}  // namespace

void Saved::Keep(const Tensor& tensor) {
  if (what_ != nullptr) tensors_.emplace_back(tensor, what_);
}

Tensor Saved::operator[](size_t i) const {
  LS_CHECK(i < tensors_.size(), "backward of the function '", name_, "' asks for saved tensor ", i,
           ", but its forward kept ", tensors_.size(), ": call saved.Keep there");
  return tensors_[i].Unpack();
}

bool Saved::Needs(size_t i) const { return needs_.at(i); }

class FunctionNode : public Node {
 public:
  FunctionNode(const char* name, internal::FunctionBackward backward)
      : Node(name), backward_(std::move(backward)) {
    saved.name_ = name;
    saved.what_ = Permanent(StrCat("a tensor that the function '", name, "' saved"));
  }

  void Backward(std::span<const Tensor> grads, const std::vector<bool>& needs,
                std::span<GradSink> sinks) override {
    saved.needs_ = needs;
    const internal::Tensors given = backward_(saved, {grads.begin(), grads.end()});
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
  void Release() override { saved.tensors_.clear(); }

  Saved saved;

 private:
  internal::FunctionBackward backward_;
};

internal::Tensors internal::RunFunction(const std::string& name, const Tensors& inputs,
                                        const FunctionForward& forward,
                                        const FunctionBackward& backward) {
  Tensors detached;
  std::vector<const Tensor*> from;
  for (size_t i = 0; i < inputs.size(); ++i) {
    LS_CHECK(inputs[i].defined(), "input ", i, " of the function '", name, "' is undefined");
    detached.push_back(inputs[i].Detach());
    from.push_back(&inputs[i]);
  }
  const bool record = NeedsGrad(from);
  const auto node = record ? std::make_shared<FunctionNode>(Permanent(name), backward) : nullptr;
  Saved none;
  Tensors results;
  {
    const NoGrad no_grad;
    results = forward(node ? node->saved : none, detached);
  }
  std::vector<Tensor*> to;
  for (size_t i = 0; i < results.size(); ++i) {
    LS_CHECK(results[i].defined() && IsFloating(results[i].dtype()), "result ", i,
             " of the function '", name, "' must be a floating tensor, not ",
             results[i].Describe());
    results[i] = results[i].Detach();
    to.push_back(&results[i]);
  }
  if (record) Record(node, from, to);
  return results;
}

}  // namespace lockstep::ops
