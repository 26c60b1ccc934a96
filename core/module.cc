#include "core/module.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <typeinfo>
#include <unordered_set>

namespace lockstep {
namespace internal {

ChildSlot::ChildSlot(Module* owner, std::string name) : owner_(owner), name_(std::move(name)) {
  for (const ChildSlot* other : owner->children_) {
    LS_CHECK(name_.empty() || other->name() != name_, "a module already has a child named '", name_,
             "'");
  }
  owner->children_.push_back(this);
}

ChildSlot::~ChildSlot() {
  if (owner_ != nullptr) std::erase(owner_->children_, this);
}

}  // namespace internal

Module::~Module() {
  for (internal::ChildSlot* child : children_) child->owner_ = nullptr;
  *alive_ = nullptr;
}

namespace {

std::string Join(const std::string& prefix, const std::string& name) {
  if (prefix.empty()) return name;
  return name.empty() ? prefix : prefix + "." + name;
}

}  // namespace

std::vector<std::pair<std::string, std::shared_ptr<Parameter>>> Module::NamedParameters() const {
  std::vector<std::pair<std::string, std::shared_ptr<Parameter>>> out;
  std::unordered_set<const Parameter*> seen;
  for (auto& [path, module] : const_cast<Module*>(this)->NamedModules()) {
    for (const auto& [name, parameter] : module->parameters_) {
      if (seen.insert(parameter.get()).second) out.emplace_back(Join(path, name), parameter);
    }
  }
  return out;
}

std::vector<std::shared_ptr<Parameter>> Module::Parameters() const {
  std::vector<std::shared_ptr<Parameter>> out;
  for (auto& [name, parameter] : NamedParameters()) out.push_back(std::move(parameter));
  return out;
}

std::vector<std::pair<std::string, Tensor>> Module::NamedBuffers() const {
  std::vector<std::pair<std::string, Tensor>> out;
  for (auto& [path, module] : const_cast<Module*>(this)->NamedModules()) {
    for (const Buffer& b : module->buffers_) out.emplace_back(Join(path, b.name), *b.value);
  }
  return out;
}

std::vector<std::pair<std::string, Module*>> Module::NamedModules() {
  std::vector<std::pair<std::string, Module*>> above, out;
  Collect("", above, out);
  return out;
}

std::vector<Module*> Module::Children() const {
  std::vector<Module*> out;
  for (const internal::ChildSlot* child : children_) out.push_back(child->module().get());
  return out;
}

void Module::Collect(const std::string& path, std::vector<std::pair<std::string, Module*>>& above,
                     std::vector<std::pair<std::string, Module*>>& out) {
  for (const auto& [other, module] : above) {
    LS_CHECK(module != this, "the module at '", path, "' is ",
             other.empty() ? "the model itself" : StrCat("the one at '", other, "'"),
             ", which would contain itself; put another module there");
  }
  out.emplace_back(path, this);
  above.emplace_back(path, this);
  for (const internal::ChildSlot* child : children_) {
    child->module()->Collect(Join(path, child->name()), above, out);
  }
  above.pop_back();
}

int64_t Module::NumParameters() const {
  int64_t n = 0;
  for (const auto& p : Parameters()) {
    if (IsFloating(p->part().dtype())) n += p->logical_shape().numel();
  }
  return n;
}

void Module::ReplaceChild(const std::string& path, std::shared_ptr<Module> module) {
  Replace(path, std::move(module));
  if (named_) AssignNames(path_);
}

std::vector<internal::ChildSlot*> Module::Slots() const {
  std::vector<internal::ChildSlot*> out;
  for (internal::ChildSlot* child : children_) {
    if (child->name().empty()) {
      const auto below = child->module()->Slots();
      out.insert(out.end(), below.begin(), below.end());
    } else {
      out.push_back(child);
    }
  }
  return out;
}

void Module::Replace(const std::string& path, std::shared_ptr<Module> module) {
  std::string known;
  for (internal::ChildSlot* child : Slots()) {
    if (child->name() == path) return child->Replace(std::move(module));
    const std::string prefix = child->name() + ".";
    if (path.starts_with(prefix)) {
      return child->module()->Replace(path.substr(prefix.size()), std::move(module));
    }
    known += " " + child->name();
  }
  throw ArgumentError(StrCat("no child module '", path, "'; there are:", known));
}

void Module::AssignNames(const std::string& path) {
  std::unordered_set<const Module*> seen;
  for (auto& [below, module] : NamedModules()) {
    if (!seen.insert(module).second) continue;
    module->path_ = Join(path, below);
    module->named_ = true;
  }
  for (const auto& [name, parameter] : NamedParameters()) parameter->set_name(Join(path, name));
}

const std::string& Module::path() const {
  LS_CHECK(named_,
           "this module does not know its place in the tree yet: first call Materialize or "
           "AssignNames on the model that contains it");
  return path_;
}

void Module::Materialize(Device device, std::optional<uint64_t> seed, DType dtype) {
  AssignNames(path_);
  for (const auto& parameter : Parameters()) parameter->Materialize(device, dtype, seed);
  for (auto& [path, module] : NamedModules()) {
    for (Buffer& b : module->buffers_) {
      const bool wide = dtype == DType::kF64 && IsFloating(b.initial.dtype());
      *b.value = Tensor::Empty(b.initial.shape(), wide ? DType::kF64 : b.initial.dtype(), device);
      if (!device.is_meta()) b.value->CopyFrom(b.initial);
    }
  }
}

void Module::ZeroGrad() {
  for (const auto& p : Parameters()) p->leaf().ZeroGrad();
}

std::shared_ptr<Parameter> Module::AddParameter(const std::string& name, const Shape& shape,
                                                Initializer init, bool decay) {
  auto parameter = std::make_shared<Parameter>(shape, std::move(init), decay);
  parameter->set_name(name);
  ShareParameter(name, parameter);
  return parameter;
}

void Module::ShareParameter(const std::string& name, std::shared_ptr<Parameter> parameter) {
  for (const auto& [other, p] : parameters_) {
    LS_CHECK(other != name, "a module already has a parameter named '", name, "'");
  }
  parameters_.emplace_back(name, std::move(parameter));
}

Tensor& Module::AddBuffer(const std::string& name, const Tensor& value) {
  for (const Buffer& b : buffers_) {
    LS_CHECK(b.name != name, "a module already has a buffer named '", name, "'");
  }
  // An expanded value stays one: a buffer that is filled later need not be in memory twice.
  const bool expanded = value.numel() > 1 && value.strides()[0] == 0;
  buffers_.push_back({name, expanded ? value : value.Clone(), std::make_unique<Tensor>(value)});
  return *buffers_.back().value;
}

namespace {

// An error that says in which module it was thrown.
class PlacedError : public ArgumentError {
 public:
  using ArgumentError::ArgumentError;
};

// "lockstep::nn::Linear"
std::string ClassOf(const Module& module) {
  const char* const mangled = typeid(module).name();
  const std::unique_ptr<char, void (*)(void*)> name(
      abi::__cxa_demangle(mangled, nullptr, nullptr, nullptr), std::free);
  return name ? name.get() : mangled;
}

}  // namespace

void Module::ThrowWithPlace(const ArgumentError& error) const {
  if (dynamic_cast<const PlacedError*>(&error) != nullptr) throw;
  const std::string place = path_.empty() ? "" : StrCat("the module '", path_, "', ");
  std::string text = StrCat(error.what(), " (in ", place, "a ", ClassOf(*this), ")");
  const auto without_memory = [](const auto& p) { return !p.second->materialized(); };
  if (std::ranges::any_of(parameters_, without_memory)) {
    text +=
        ". Its parameters have no memory yet: call Materialize(device, seed) on the model. That "
        "reaches the model's children; a member is one if it is declared as\n"
        "  Child<nn::Linear> fc{this, \"fc\", 2, 3};";
  }
  throw PlacedError(text);
}

void Module::HookBackward(std::span<const Tensor* const> outputs, uint64_t first_sequence) {
  const auto run = [alive = alive_, path = path_](std::vector<Hook> Module::*hooks) {
    if (*alive == nullptr) {
      throw Error(StrCat("the module '", path,
                         "' was destroyed, with its backward hooks, before the backward of what it "
                         "computed: keep the module alive until then"));
    }
    (*alive)->RunHooks((*alive)->*hooks);
  };
  const auto range = std::make_shared<const BackwardRange>(
      BackwardRange{first_sequence, [run] { run(&Module::pre_backward_); },
                    [run] { run(&Module::post_backward_); }});
  for (const Tensor* output : outputs) {
    if (output->autograd() && output->autograd()->node) output->autograd()->node->AddRange(range);
  }
}

}  // namespace lockstep
