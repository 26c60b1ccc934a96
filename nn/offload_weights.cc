#include "nn/offload_weights.h"

#include <map>
#include <optional>
#include <string>

#include "core/autograd/engine.h"
#include "core/autograd/grad_mode.h"
#include "core/offload/host_copies.h"

namespace lockstep::nn {
namespace {

constexpr int64_t kAlignment = 256;  // of a weight within a block's memory, in bytes

// The memory of one block's weights on the device.
class Unit {
 public:
  explicit Unit(Module& block) : parameters_(block.Parameters()) {
    for (const auto& p : parameters_) p->KeepOnHost();
  }

  // Those of a sharded model are gathered by dist::FullyShard.
  bool idle() const {
    return parameters_.empty() || !parameters_[0]->on_host() || parameters_[0]->layout().range;
  }
  Device device() const { return parameters_.at(0)->device(); }
  const std::vector<std::shared_ptr<Parameter>>& parameters() const { return parameters_; }

  // Begins to copy the weights to the device, unless they are there already, or on their way.
  void Fetch(HostCopies& copies, const std::string& name) {
    if (IsCurrent()) return;
    Build();
    memory_.Materialize();
    std::vector<HostCopies::Copy> wanted;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const Tensor& host = parameters_[i]->part();
      if (host.numel() > 0 && !host.device().is_meta()) {
        wanted.push_back({host.raw_data(), on_device_[i].raw_data(), host.bytes()});
      }
      // To code that saved the weights as they were, they are overwritten.
      const uint64_t version = host.storage().version();
      if (versions_[i] && *versions_[i] != version) on_device_[i].storage().BumpVersion();
      versions_[i] = version;
    }
    arriving_ = copies.ToDevice(wanted, name);
  }
  // Shows them to forward, whose work comes after the copies.
  void Show(const HostCopies& copies) {
    copies.Await(arriving_);
    for (size_t i = 0; i < parameters_.size(); ++i) {
      Tensor weight = on_device_[i];
      weight.set_autograd(parameters_[i]->part().autograd());
      parameters_[i]->Show(weight);
    }
  }
  void Hide() {
    for (const auto& p : parameters_) p->Hide();
  }
  void Release(const HostCopies& copies) {
    copies.Await(arriving_);
    if (memory_.defined() && !memory_.released()) memory_.Release();
  }

 private:
  bool IsCurrent() const {
    if (!memory_.defined() || memory_.released()) return false;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const Storage& host = parameters_[i]->part().storage();
      if (!host.SameBlock(hosts_[i]) || host.version() != versions_[i]) return false;
    }
    return true;
  }

  // Anew once weights were materialised again.
  void Build() {
    bool same = memory_.defined();
    for (size_t i = 0; same && i < parameters_.size(); ++i) {
      same = parameters_[i]->part().storage().SameBlock(hosts_[i]);
    }
    if (same) return;
    int64_t bytes = 0;
    std::vector<int64_t> offsets;
    for (const auto& p : parameters_) {
      LS_CHECK(p->on_host() && p->device() == device(),
               "the weights of a block are on one device, "
               "but '",
               parameters_[0]->name(), "' is on ", device(), " and '", p->name(), "' on ",
               p->device(), ": materialise them together");
      offsets.push_back(bytes);
      bytes += (p->part().bytes() + kAlignment - 1) / kAlignment * kAlignment;
    }
    memory_ = Storage::Reserve(bytes, device());
    hosts_.clear();
    on_device_.clear();
    versions_.assign(parameters_.size(), {});
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const Tensor& host = parameters_[i]->part();
      hosts_.push_back(host.storage());
      // Slices have a version each.
      on_device_.push_back(
          Tensor::FromStorage(memory_.Slice(offsets[i], host.bytes()), host.dtype(), host.shape()));
    }
  }

  const std::vector<std::shared_ptr<Parameter>> parameters_;
  Storage memory_;  // released while the block is not in use
  std::vector<Tensor> on_device_;
  // What is, or was last, in the memory.
  std::vector<Storage> hosts_;
  std::vector<std::optional<uint64_t>> versions_;
  HostCopies::Done arriving_;  // null once the device's work waits for it
};

// All blocks of a model. Held by their hooks.
class Blocks {
 public:
  explicit Blocks(const std::vector<Module*>& modules) {
    std::map<const Parameter*, size_t> block_of;
    for (size_t b = 0; b < modules.size(); ++b) {
      LS_CHECK(modules[b] != nullptr, "OffloadWeights needs modules, but block ", b, " is null");
      for (const auto& p : modules[b]->Parameters()) {
        const auto [before, is_new] = block_of.try_emplace(p.get(), b);
        LS_CHECK(is_new, "OffloadWeights: the parameter '", p->name(), "' is in the blocks ",
                 before->second, " and ", b,
                 ": give it one module that contains both, or leave both out");
      }
    }
    for (Module* module : modules) units_.emplace_back(*module);
  }

  void PreForward(size_t u, Module& module) {
    if (units_[u].idle()) return;
    if (u == 0 && !InBackward()) DropLeftOver();
    Fetch(u);
    shown_ = u;
    units_[u].Show(*copies_);
    if (!InBackward()) Fetch(u + 1);
    Begin(module, " forward");
  }
  // From the last block's forward to its backward the weights stay.
  void PostForward(size_t u, Module&) {
    if (units_[u].idle()) return;
    computing_.reset();
    Hide(u);
    const bool keep = u + 1 == units_.size() && GradEnabled();
    if (!InBackward() && !keep) units_[u].Release(*copies_);
  }
  void PreBackward(size_t u, Module& module) {
    if (units_[u].idle()) return;
    Fetch(u);
    units_[u].Show(*copies_);  // to forwards that run again
    shown_ = u;
    if (u > 0) Fetch(u - 1);
    Begin(module, " backward");
  }
  void PostBackward(size_t u, Module&) {
    if (units_[u].idle()) return;
    computing_.reset();
    Hide(u);
    units_[u].Release(*copies_);
  }

 private:
  // What is still there of a forward that threw, or had no backward.
  void DropLeftOver() {
    if (shown_) Hide(*shown_);
    for (size_t u = 2; copies_ && u < units_.size(); ++u) units_[u].Release(*copies_);
  }
  void Fetch(size_t u) {
    if (u >= units_.size() || units_[u].idle()) return;
    const Device device = units_[u].device();
    if (!copies_ || copies_->device() != device) copies_.emplace(device);
    units_[u].Fetch(*copies_,
                    CopyListener::OfThisThread() ? units_[u].parameters()[0]->name() : "");
  }
  void Hide(size_t u) {
    units_[u].Hide();
    shown_.reset();
  }
  void Begin(const Module& module, const char* what) {
    if (CopyListener::OfThisThread()) computing_.emplace(copies_->device(), module.path() + what);
  }

  std::vector<Unit> units_;
  std::optional<size_t> shown_;
  std::optional<ComputeSpan> computing_;
  std::optional<HostCopies> copies_;  // destroyed first
};

}  // namespace

void internal::OffloadWeights(const std::vector<Module*>& modules) {
  const auto blocks = std::make_shared<Blocks>(modules);
  for (size_t u = 0; u < modules.size(); ++u) {
    const auto hook = [&](void (Blocks::*f)(size_t, Module&)) {
      return [blocks, u, f](Module& module) { (*blocks.*f)(u, module); };
    };
    modules[u]->AddPreForwardHook(hook(&Blocks::PreForward));
    modules[u]->AddPostForwardHook(hook(&Blocks::PostForward));
    modules[u]->AddPreBackwardHook(hook(&Blocks::PreBackward));
    modules[u]->AddPostBackwardHook(hook(&Blocks::PostBackward));
  }
}

}  // namespace lockstep::nn
