// Modules: named parameters, buffers and children, and hooks around a typed Forward.
#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/autograd/recompute.h"
#include "core/parameter.h"

namespace lockstep {

class Module;

namespace internal {
// A named place for a child; what Module knows of Child<M>.
class ChildSlot {
 public:
  virtual ~ChildSlot();  // removes itself from its owner
  ChildSlot(const ChildSlot&) = delete;
  ChildSlot& operator=(const ChildSlot&) = delete;
  virtual std::shared_ptr<Module> module() const = 0;
  // Throws ArgumentError if the module is not of the slot's type.
  virtual void Replace(std::shared_ptr<Module> module) = 0;
  const std::string& name() const { return name_; }

 protected:
  ChildSlot(Module* owner, std::string name);

 private:
  friend class lockstep::Module;
  Module* owner_;  // null once the owner is destroyed
  std::string name_;
};

}  // namespace internal

// Calls f for the tensors in a module's result: backward hooks are attached to these. For a type of
// your own, declare an overload next to it, in its namespace.
template <class F>
void ForEachTensor(const Tensor& t, const F& f) {
  f(t);
}
template <class T, class F>
void ForEachTensor(const std::vector<T>& list, const F& f) {
  for (const T& t : list) ForEachTensor(t, f);
}
template <class A, class B, class F>
void ForEachTensor(const std::pair<A, B>& p, const F& f) {
  ForEachTensor(p.first, f);
  ForEachTensor(p.second, f);
}

// Everything about a module except the type of its Forward (see ModuleOf). Modules are held by
// shared_ptr or as locals, and cannot be copied or moved: children point to their owners.
class Module {
 public:
  Module() = default;
  virtual ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  // ---- The tree. Names are paths: "h.0.attn.c_attn.weight". A parameter shared by several places
  // appears once, under its first name. Order: the module's own parameters, then its children, as
  // declared. A child with an empty name has its owner's path ("" joined with "wte" is "wte"). If a
  // module contains itself, these throw ArgumentError naming the path. ----
  std::vector<std::pair<std::string, std::shared_ptr<Parameter>>> NamedParameters() const;
  std::vector<std::shared_ptr<Parameter>> Parameters() const;
  std::vector<std::pair<std::string, Tensor>> NamedBuffers() const;
  std::vector<std::pair<std::string, Module*>> NamedModules();  // itself first, under ""
  std::vector<Module*> Children() const;                        // direct ones
  int64_t NumParameters() const;
  // Replaces the child at `path` by `module` (LoRA, tensor parallel). If this tree has names, the
  // new module gets its own; materialise its parameters yourself.
  void ReplaceChild(const std::string& path, std::shared_ptr<Module> module);
  // Names all modules and parameters in this tree by their paths, which begin with `path`.
  // Materialize calls it.
  void AssignNames(const std::string& path = "");
  // This module's path in the tree, from which random operations derive their site. Throws before
  // AssignNames. A module in several places has the path of the first.
  const std::string& path() const;

  // ---- State. ----
  // Names all parameters by their paths, gives them memory, and fills them: pure functions of
  // (seed, name, element index). Without a seed (nullopt) they have no values yet, for a model
  // whose weights are loaded next. Buffers are reset to their initial values.
  void Materialize(Device device, std::optional<uint64_t> seed, DType dtype = DType::kF32);
  void ZeroGrad();

  // ---- Hooks; they run in the order in which they were added, around a forward and its backward,
  // but not where the forward runs again to recompute what it saved (nn::Recompute): that is part
  // of the backward of the module that is recomputed. ----
  using Hook = std::function<void(Module&)>;
  void AddPreForwardHook(Hook hook) { pre_forward_.push_back(std::move(hook)); }
  void AddPostForwardHook(Hook hook) { post_forward_.push_back(std::move(hook)); }
  // These run before the backward of the first of this module's results, and after that of all
  // nodes that its forward recorded, once per forward call that the backward goes through. Backward
  // throws Error if the module has been destroyed by then: its hooks (which may gather weights,
  // say) could not run.
  void AddPreBackwardHook(Hook hook) { pre_backward_.push_back(std::move(hook)); }
  void AddPostBackwardHook(Hook hook) { post_backward_.push_back(std::move(hook)); }
  // Runs `forward` with this module's hooks, as its forward. ModuleOf's operator() does so; a
  // parent that computes several children in one pass nests their calls.
  template <class F>
  auto WithHooks(const F& forward) {
    if (Recomputing()) return forward();
    RunHooks(pre_forward_);
    const uint64_t first = NextSequence();
    auto out = [&] {
      try {
        return forward();
      } catch (const ArgumentError& error) {
        ThrowWithPlace(error);
      }
    }();
    if (!pre_backward_.empty() || !post_backward_.empty()) {
      std::vector<const Tensor*> outputs;
      ForEachTensor(out, [&](const Tensor& t) { outputs.push_back(&t); });
      HookBackward(outputs, first);
    }
    RunHooks(post_forward_);
    return out;
  }

 protected:
  std::shared_ptr<Parameter> AddParameter(const std::string& name, const Shape& shape,
                                          Initializer init, bool decay);
  // The same parameter as another module's (tied weights).
  void ShareParameter(const std::string& name, std::shared_ptr<Parameter> parameter);
  // State that is saved but not trained, such as running statistics. Materialize makes it a copy of
  // `value` on the device, in the dtype of `value`; f64 models have floating buffers in f64.
  Tensor& AddBuffer(const std::string& name, const Tensor& value);

 private:
  friend class internal::ChildSlot;
  // The slots at this module's path: its own, and those of its unnamed children.
  std::vector<internal::ChildSlot*> Slots() const;
  void Replace(const std::string& path, std::shared_ptr<Module> module);
  // Adds this module, whose path is `path`, and everything below it. `above`: its ancestors.
  void Collect(const std::string& path, std::vector<std::pair<std::string, Module*>>& above,
               std::vector<std::pair<std::string, Module*>>& out);
  // In a handler of `error`, which this module's forward threw: throws it again, with a message
  // that also says in which module, the innermost, it was thrown.
  [[noreturn]] void ThrowWithPlace(const ArgumentError& error) const;
  // Attaches the backward hooks to the graph recorded since `first_sequence`.
  void HookBackward(std::span<const Tensor* const> outputs, uint64_t first_sequence);
  void RunHooks(const std::vector<Hook>& hooks) {
    for (const Hook& hook : hooks) hook(*this);
  }

  std::string path_;
  bool named_ = false;
  std::vector<std::pair<std::string, std::shared_ptr<Parameter>>> parameters_;
  struct Buffer {
    std::string name;
    Tensor initial;
    std::unique_ptr<Tensor> value;
  };
  std::vector<Buffer> buffers_;
  std::vector<internal::ChildSlot*> children_;
  std::vector<Hook> pre_forward_, post_forward_, pre_backward_, post_backward_;
  // Held by graphs with backward hooks; points to null once this module is destroyed.
  const std::shared_ptr<Module*> alive_ = std::make_shared<Module*>(this);
};

template <class Signature>
class ModuleOf;

// A module with `Out Forward(In...)`. Callers use operator(), which runs the hooks:
//   class Block : public ModuleOf<Tensor(const Tensor&)> {
//     Tensor Forward(const Tensor& x) override;
//   };
template <class Out, class... In>
class ModuleOf<Out(In...)> : public Module {
 public:
  using Interface = ModuleOf;

  Out operator()(In... in) {
    return WithHooks([&] { return Forward(std::forward<In>(in)...); });
  }

 protected:
  virtual Out Forward(In... in) = 0;
};

// The interface of most layers: a tensor in, a tensor out.
using Layer = ModuleOf<Tensor(const Tensor&)>;

// Lets modules with another interface into slots of M. A specialisation, next to M, is a class
// derived from M with a type From and a constructor from std::shared_ptr<From>. The adapter itself
// is not part of the tree: names, hooks and parameters are those of the module it calls.
template <class M>
class SlotAdapter;

namespace internal {
// Whether `Args` is just a pointer to a module.
template <class... Args>
inline constexpr bool kIsModulePointer = false;
template <class Arg>
inline constexpr bool kIsModulePointer<Arg> = std::convertible_to<Arg, std::shared_ptr<Module>>;
}  // namespace internal

// A member of a module that holds a child. Either the child is made here, from the arguments of its
// constructor, or it comes as a pointer:
//   Child<nn::Linear> fc{this, "fc", 784, 128};
//   Child<Layer> fc{this, "fc", std::make_shared<nn::Linear>(784, 128)};
// ReplaceChild puts any module into its place that takes and returns the same types (LoRA, tensor
// parallel, nn::Recompute), or has an adapter to M; others throw ArgumentError. Calls go to the new
// one; other members of M, such as `fc->weight()`, throw Error if the new one is not an M.
template <class M>
class Child : public internal::ChildSlot {
  template <class T>
  struct InterfaceOf {
    using Type = T;
  };
  template <class T>
  requires(!std::is_abstract_v<T> && requires { typename T::Interface; }) struct InterfaceOf<T> {
    using Type = typename T::Interface;
  };

 public:
  // What calls go to: M if it is abstract, or else the interface that it implements.
  using Callee = typename InterfaceOf<M>::Type;

  // Options in braces need their name here:
  //   Child<nn::Linear> fc{this, "fc", 8, 4, nn::LinearOptions{.bias = false}};
  template <class... Args>
  requires(!internal::kIsModulePointer<Args...> && std::constructible_from<M, Args...>)
      Child(Module* owner, std::string name, Args&&... args)
      : Child(owner, std::move(name),
              std::shared_ptr<Module>(std::make_shared<M>(std::forward<Args>(args)...))) {}
  Child(Module* owner, std::string name, std::shared_ptr<Module> module)
      : ChildSlot(owner, std::move(name)) {
    Child::Replace(std::move(module));
  }

  template <class... In>
  auto operator()(In&&... in) {
    if constexpr (std::invocable<Callee&, In...>) {
      return (*callee_)(std::forward<In>(in)...);
    } else {
      return (**this)(std::forward<In>(in)...);  // M has more ways to be called
    }
  }
  M* operator->() const { return &**this; }
  M& operator*() const {
    if (exact_ == nullptr) {
      throw Error(StrCat("the child '", name(),
                         "' has been replaced by a module of another class: "
                         "it can be called, but has no other functions of the one it replaced"));
    }
    return *exact_;
  }
  std::shared_ptr<Module> module() const override { return module_; }
  void Replace(std::shared_ptr<Module> module) override {
    LS_CHECK(module != nullptr, "the child '", name(), "' must be a module, not null");
    auto callee = std::dynamic_pointer_cast<Callee>(module);
    if constexpr (requires { typename SlotAdapter<M>::From; }) {
      auto other = std::dynamic_pointer_cast<typename SlotAdapter<M>::From>(module);
      if (!callee && other) callee = std::make_shared<SlotAdapter<M>>(std::move(other));
    }
    LS_CHECK(callee != nullptr, "the child '", name(),
             "' cannot be replaced by a module of another interface: the new one must take and "
             "return the same types");
    module_ = std::move(module);
    callee_ = std::move(callee);
    exact_ = dynamic_cast<M*>(callee_.get());
  }

 private:
  std::shared_ptr<Module> module_;
  std::shared_ptr<Callee> callee_;  // the module, or its adapter
  M* exact_ = nullptr;              // the same, or null if that is not an M
};

// Children named "<name>.0", "<name>.1", ...
template <class M>
class ChildList {
 public:
  ChildList(Module* owner, std::string name, std::vector<std::shared_ptr<M>> modules = {})
      : owner_(owner), name_(std::move(name)) {
    for (auto& module : modules) Add(std::move(module));
  }
  void Add(std::shared_ptr<Module> module) {
    items_.push_back(
        std::make_unique<Child<M>>(owner_, StrCat(name_, ".", items_.size()), std::move(module)));
  }
  // The same with one that is made here: layers.Add<nn::Linear>(784, 128).
  template <std::derived_from<Module> C, class... Args>
  C& Add(Args&&... args) {
    const auto module = std::make_shared<C>(std::forward<Args>(args)...);
    Add(std::shared_ptr<Module>(module));
    return *module;
  }
  int64_t size() const { return static_cast<int64_t>(items_.size()); }
  Child<M>& operator[](int64_t i) { return *items_[static_cast<size_t>(i)]; }

 private:
  Module* owner_;
  std::string name_;
  std::vector<std::unique_ptr<Child<M>>> items_;
};

}  // namespace lockstep
