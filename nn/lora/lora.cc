#include "nn/lora/lora.h"

#include <cmath>
#include <functional>
#include <set>
#include <typeinfo>

#include "kernels/binary/binary.h"
#include "kernels/concat/concat.h"
#include "kernels/gelu/gelu.h"
#include "kernels/low_rank_update/low_rank_update.h"
#include "kernels/scale/scale.h"
#include "nn/dropout.h"
#include "nn/init.h"

namespace lockstep::nn {
namespace {

thread_local int disabled = 0;  // LoraDisabled scopes

int64_t TotalRank(const std::vector<LoraSlice>& slices) {
  int64_t rank = 0;
  for (const LoraSlice& slice : slices) rank += slice.rank;
  return rank;
}

// Checked before any child is made.
template <class L>
std::vector<LoraSlice> Checked(const L& linear, std::vector<LoraSlice> slices) {
  int64_t rows = 0;
  const int64_t in = linear.in_features(), out = linear.out_features();
  for (const LoraSlice& slice : slices) {
    const std::string name = slice.name.empty() ? "" : StrCat(" of ", slice.name);
    LS_CHECK(slice.rows > 0 && slice.rank >= 0 && std::isfinite(slice.scale),
             "LoRA: a slice needs rows, a rank of at least 0 and a finite scale, got ", slice.rows,
             " rows, rank ", slice.rank, " and scale ", slice.scale);
    LS_CHECK(slice.rank <= std::min(slice.rows, in), "LoRA: the rank ", slice.rank, name,
             " exceeds the smaller dimension of its matrix [", slice.rows, ", ", in,
             "]: use a rank of at most ", std::min(slice.rows, in), ", or train the matrix itself");
    rows += slice.rows;
  }
  LS_CHECK(rows == out, "LoRA: the slices have ", rows, " rows together, and the matrix has ", out);
  LS_CHECK(TotalRank(slices) > 0, "LoRA: no slice of the matrix [", out, ", ", in,
           "] has a rank above 0");
  return slices;
}

// y plus what the slices' adapters add to its columns: add(i, h's columns of slice i).
template <class F>
Tensor AddToSlices(const std::vector<LoraSlice>& slices, const Tensor& y, const Tensor& h,
                   const F& add) {
  std::vector<int64_t> rows, ranks;
  for (const LoraSlice& s : slices) {
    rows.push_back(s.rows);
    if (s.rank > 0) ranks.push_back(s.rank);
  }
  std::vector<Tensor> parts = y.Split(rows, -1);
  const std::vector<Tensor> inputs = h.Split(ranks, -1);
  size_t next = 0;
  for (size_t i = 0; i < slices.size(); ++i) {
    if (slices[i].rank > 0) parts[i] = parts[i] + add(i, inputs[next++]) * slices[i].scale;
  }
  return parts.size() == 1 ? parts[0] : ops::Concat(parts, -1);
}

template <class L>
std::shared_ptr<L> MakeA(int64_t in, const std::vector<LoraSlice>& slices) {
  return std::make_shared<L>(in, TotalRank(slices), LinearOptions{.bias = false});
}

}  // namespace

double LoraOptions::scale() const {
  const auto r = static_cast<double>(rank);
  return alpha / (rank_stabilized ? std::sqrt(r) : r);
}

LoraUpdate::LoraUpdate(const std::vector<LoraSlice>& slices) : slices_(slices) {
  for (const LoraSlice& s : slices_) {
    if (s.rank > 0) {
      const LinearOptions options{.bias = false, .weight_init = Constant(0)};
      layers_.push_back(std::make_unique<Child<Layer>>(
          this, s.name, std::make_shared<Linear>(s.rank, s.rows, options)));
    } else {
      layers_.push_back(nullptr);
    }
  }
}

void LoraUpdate::KeepRows(int64_t parts) {
  for (LoraSlice& slice : slices_) {
    LS_CHECK(slice.rows % parts == 0, "LoRA: ", parts, " ranks do not divide the ", slice.rows,
             " rows of ", slice.name);
    slice.rows /= parts;
  }
}

bool LoraUpdate::OwnLinears() const {
  for (const auto& layer : layers_) {
    if (layer == nullptr) continue;
    const Module& module = *layer->module();
    if (typeid(module) != typeid(Linear)) return false;
  }
  return true;
}

Tensor LoraUpdate::AtOnce(Tensor y, const Tensor& h) const {
  std::vector<ops::LowRankBlock> blocks;
  for (size_t i = 0; i < slices_.size(); ++i) {
    const LoraSlice& s = slices_[i];
    blocks.push_back({.b = {}, .columns = s.rows, .scale = s.scale});
    if (layers_[i] == nullptr) continue;
    blocks.back().b = dynamic_cast<const Linear&>(*layers_[i]->module()).weight()->value();
  }
  return ops::LowRankUpdate(std::move(y), h, blocks);
}

Tensor LoraUpdate::SliceBySlice(const Tensor& y, const Tensor& h) const {
  return AddToSlices(slices_, y, h, [&](size_t i, const Tensor& x) { return (*layers_[i])(x); });
}

Tensor LoraUpdate::Forward(Tensor y, const Tensor& h) {
  if (!OwnLinears()) return SliceBySlice(y, h);
  std::function<Tensor()> run = [&] { return AtOnce(std::move(y), h); };
  for (const auto& layer : layers_) {
    if (layer == nullptr) continue;
    run = [inner = std::move(run), module = layer->module()] { return module->WithHooks(inner); };
  }
  return run();
}

int64_t LoraAdapter::out_features() const {
  int64_t rows = 0;
  for (const LoraSlice& slice : slices_) rows += slice.rows;
  return rows;
}

int64_t LoraAdapter::first_rank(size_t slice) const {
  int64_t rank = 0;
  for (size_t i = 0; i < slice; ++i) rank += slices_[i].rank;
  return rank;
}

std::vector<std::shared_ptr<Parameter>> LoraAdapter::frozen() const {
  std::vector<std::shared_ptr<Parameter>> out;
  for (const auto& p : frozen_) {
    if (auto there = p.lock()) out.push_back(std::move(there));
  }
  return out;
}

void LoraAdapter::SetFrozen(const std::vector<std::shared_ptr<Parameter>>& frozen) {
  frozen_.assign(frozen.begin(), frozen.end());
}

void LoraAdapter::Keep(const std::shared_ptr<Parameter>& weight,
                       const std::shared_ptr<Parameter>& a, const LoraUpdate& update) {
  std::vector<std::shared_ptr<Parameter>> b;
  for (size_t i = 0; i < slices_.size(); ++i) {
    Child<Layer>* layer = update.layer(i);
    b.push_back(layer ? std::dynamic_pointer_cast<Linear>(layer->module())->weight() : nullptr);
  }
  Keep(weight, a, std::move(b));
}

void LoraAdapter::Keep(const std::shared_ptr<Parameter>& weight,
                       const std::shared_ptr<Parameter>& a,
                       std::vector<std::shared_ptr<Parameter>> b) {
  weight_ = weight;
  a_ = a;
  b_ = std::move(b);
}

LoraLinear::LoraLinear(const Linear& linear, std::vector<LoraSlice> slices, double dropout)
    : LoraAdapter(Checked(linear, std::move(slices))),
      activation_(linear.activation()),
      base_(this, "", std::make_shared<Linear>(linear.weight(), linear.bias())),
      dropout_(this, "lora_dropout", std::make_shared<Dropout>(dropout)),
      a_layer_(this, "lora_A", MakeA<Linear>(linear.in_features(), slices_)),
      update_(this, "lora_B", std::make_shared<LoraUpdate>(slices_)) {
  Keep(linear.weight(), std::dynamic_pointer_cast<Linear>(a_layer_.module())->weight(), *update_);
}

std::shared_ptr<Module> LoraLinear::without() const {
  const auto base = std::dynamic_pointer_cast<Linear>(base_.module());
  return base ? std::make_shared<Linear>(base->weight(), base->bias(), activation_) : nullptr;
}

Tensor LoraLinear::Forward(const Tensor& x) {
  Tensor y;
  if (disabled > 0) {
    y = base_(x);
  } else {
    const Tensor h = a_layer_(dropout_(x));
    y = update_(base_(x), h);
  }
  return activation_ == Activation::kGelu ? ops::Gelu(y) : y;
}

LoraBranchLinear::LoraBranchLinear(const BranchLinear& linear, std::vector<LoraSlice> slices,
                                   double dropout)
    : LoraAdapter(Checked(linear, std::move(slices))),
      base_(this, "", std::make_shared<BranchLinear>(linear.weight(), linear.bias())),
      dropout_(this, "lora_dropout", std::make_shared<Dropout>(dropout)),
      a_layer_(this, "lora_A", MakeA<BranchLinear>(linear.in_features(), slices_)),
      update_(this, "lora_B", std::make_shared<LoraUpdate>(slices_)) {
  Keep(linear.weight(), std::dynamic_pointer_cast<BranchLinear>(a_layer_.module())->weight(),
       *update_);
}

std::shared_ptr<Module> LoraBranchLinear::without() const {
  const auto base = std::dynamic_pointer_cast<BranchLinear>(base_.module());
  return base ? std::make_shared<BranchLinear>(base->weight(), base->bias()) : nullptr;
}

ops::Branch LoraBranchLinear::Forward(ops::Branch x) {
  const Tensor input = ops::Complete(x);
  if (disabled > 0) return base_(input);
  const Tensor h = ops::Complete(a_layer_(dropout_(input)));
  ops::Branch y = base_(input);
  if (y.dropout > 0) y = ops::Complete(y);
  y.value = update_(std::move(y.value), h);
  return y;
}

LoraGroupedLinear::LoraGroupedLinear(const GroupedLinear& linear, std::vector<LoraSlice> slices,
                                     double dropout)
    : LoraAdapter(Checked(linear, std::move(slices))),
      base_(this, "", std::make_shared<GroupedLinear>(linear.weight())),
      dropout_(this, "lora_dropout", std::make_shared<Dropout>(dropout)),
      a_layer_(this, "lora_A",
               std::make_shared<GroupedLinear>(linear.n_expert(), linear.in_features(),
                                               TotalRank(slices_),
                                               KaimingUniform(linear.in_features()))) {
  std::vector<std::shared_ptr<Parameter>> b;
  for (const LoraSlice& s : slices_) {
    const auto layer =
        s.rank > 0 ? std::make_shared<GroupedLinear>(linear.n_expert(), s.rank, s.rows, Constant(0))
                   : nullptr;
    const std::string name = StrCat("lora_B", s.name.empty() ? "" : ".", s.name);
    b.push_back(layer ? layer->weight() : nullptr);
    b_layers_.push_back(layer ? std::make_unique<Child<ExpertsLayer>>(this, name, layer) : nullptr);
  }
  Keep(linear.weight(), std::dynamic_pointer_cast<GroupedLinear>(a_layer_.module())->weight(),
       std::move(b));
}

std::shared_ptr<Module> LoraGroupedLinear::without() const {
  const auto base = std::dynamic_pointer_cast<GroupedLinear>(base_.module());
  return base ? std::make_shared<GroupedLinear>(base->weight()) : nullptr;
}

Tensor LoraGroupedLinear::Apply(const Tensor& rows, const Product& product) {
  const Tensor y = product(base_, rows);
  if (disabled > 0) return y;
  // A mask counts samples, of which rows have no number of their own: all of them are one.
  const Shape shape = rows.shape();
  const Tensor x = dropout_(rows.Reshape({1, shape[0], shape[1]})).Reshape(shape);
  return AddToSlices(slices_, y, product(a_layer_, x),
                     [&](size_t i, const Tensor& h) { return product(*b_layers_[i], h); });
}

Tensor LoraGroupedLinear::Forward(const Tensor& rows, const Tensor& offsets) {
  return Apply(rows,
               [&](Child<ExpertsLayer>& linear, const Tensor& x) { return linear(x, offsets); });
}

std::vector<LoraAdapter*> LoraAdapters(Module& model) {
  std::vector<LoraAdapter*> out;
  for (const auto& [path, module] : model.NamedModules()) {
    if (auto* adapter = dynamic_cast<LoraAdapter*>(module)) out.push_back(adapter);
  }
  return out;
}

std::vector<std::pair<std::string, std::shared_ptr<Parameter>>> LoraParameters(
    const Module& model) {
  std::set<const Parameter*> own;
  for (const LoraAdapter* adapter : LoraAdapters(const_cast<Module&>(model))) {
    own.insert(adapter->a().get());
    for (size_t i = 0; i < adapter->slices().size(); ++i) own.insert(adapter->b(i).get());
  }
  auto all = model.NamedParameters();
  std::erase_if(all, [&](const auto& named) { return !own.contains(named.second.get()); });
  return all;
}

LoraDisabled::LoraDisabled() { ++disabled; }
LoraDisabled::~LoraDisabled() { --disabled; }

}  // namespace lockstep::nn
