// Low-rank adapters of linear layers: Hu et al., "LoRA: low-rank adaptation of large language
// models" (2021).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/autograd/grad_mode.h"
#include "nn/linear.h"
#include "nn/mixture/experts.h"

namespace lockstep::nn {

// Neighbouring rows of a matrix, [rows, in], with an adapter of their own: a fused matrix has
// several slices (queries, keys and values; gate and up). Other programs' files have an adapter for
// each of them.
struct LoraSlice {
  std::string name{};  // "q_proj", part of the names of its parameters; "" if it has all rows
  int64_t rows = 0;    // the slices' rows add up to those of the matrix
  int64_t rank = 0;    // 0: this slice has no adapter
  double scale = 1;    // of what the adapter adds: LoraOptions::scale()
};

// y = base(x) + scale B(A(dropout(x))), for each slice with its own A [rank, in] and B [rows,
// rank]. A is uniform in +-1/sqrt(in), B is zero: at first y = base(x), to the bit. The exception
// is a layer in 16 bits that a GELU follows: without an adapter the product applies the GELU to its
// f32 result, and with one the GELU gets the sum, rounded to 16 bits. The factor `scale` is alpha /
// rank, or alpha / sqrt(rank) where it is rank-stabilised (Kalajdzievski, "A rank stabilization
// scaling factor for fine-tuning with LoRA", 2023).
struct LoraOptions {
  int64_t rank = 8;
  double alpha = 16;
  double dropout = 0;  // of the adapter's input
  bool rank_stabilized = false;

  double scale() const;
};

// y + scale_i B_i(h_i) in the rows of slice i: y [..., sum of rows], h [..., sum of ranks] -> a
// tensor like y, in its memory if nothing else can see that any more. Children: for each slice that
// has an adapter a Layer (rank -> rows) by the slice's name: an nn::Linear without bias, which
// others may replace. As long as none is replaced they are one operation, ops::LowRankUpdate.
class LoraUpdate : public ModuleOf<Tensor(Tensor y, const Tensor& h)> {
 public:
  explicit LoraUpdate(const std::vector<LoraSlice>& slices);

  // Divides the slices' rows of y by `parts`, where they are split across ranks: each rank has an
  // equal part of each slice.
  void KeepRows(int64_t parts);
  // Null for a slice without an adapter.
  Child<Layer>* layer(size_t slice) const { return layers_[slice].get(); }

 protected:
  Tensor Forward(Tensor y, const Tensor& h) override;

 private:
  // Whether no layer has been replaced.
  bool OwnLinears() const;
  Tensor AtOnce(Tensor y, const Tensor& h) const;
  Tensor SliceBySlice(const Tensor& y, const Tensor& h) const;

  std::vector<LoraSlice> slices_;
  std::vector<std::unique_ptr<Child<Layer>>> layers_;
};

// What LoraLinear, LoraBranchLinear and LoraGroupedLinear share; for code that reads, writes or
// merges adapters:
//   for (nn::LoraAdapter* adapter : nn::LoraAdapters(model)) ... adapter->a()->value() ...
class LoraAdapter {
 public:
  virtual ~LoraAdapter() = default;

  // Where it is in the model: "h.0.attn.c_attn".
  virtual const std::string& adapter_path() const = 0;
  // A linear layer without the adapter, with the base's parameters: what RemoveLora puts back. Null
  // if the base has been replaced by another module.
  virtual std::shared_ptr<Module> without() const = 0;
  int64_t in_features() const { return a_->logical_shape()[-1]; }
  int64_t out_features() const;
  const std::vector<LoraSlice>& slices() const { return slices_; }
  // A of all slices, concatenated in their order: [sum of ranks, in]; those of slice i begin at row
  // first_rank(i). Experts have it, B and the weight stacked: [n_expert, sum of ranks, in].
  const std::shared_ptr<Parameter>& a() const { return a_; }
  int64_t first_rank(size_t slice) const;
  // B of slice i, [rows, rank]; null for one without an adapter.
  const std::shared_ptr<Parameter>& b(size_t slice) const { return b_[slice]; }
  // The weight [out, in] that the adapter was made for.
  const std::shared_ptr<Parameter>& weight() const { return weight_; }
  // The parameters that AddLora froze when it added this adapter, for RemoveLora; of several that
  // were added together, the first adapter has them. Parameters that no longer exist are left out.
  std::vector<std::shared_ptr<Parameter>> frozen() const;
  void SetFrozen(const std::vector<std::shared_ptr<Parameter>>& frozen);

 protected:
  explicit LoraAdapter(std::vector<LoraSlice> slices) : slices_(std::move(slices)) {}
  // To be called once the children are there.
  void Keep(const std::shared_ptr<Parameter>& weight, const std::shared_ptr<Parameter>& a,
            const LoraUpdate& update);
  void Keep(const std::shared_ptr<Parameter>& weight, const std::shared_ptr<Parameter>& a,
            std::vector<std::shared_ptr<Parameter>> b);

  std::vector<LoraSlice> slices_;

 private:
  std::shared_ptr<Parameter> weight_, a_;
  std::vector<std::shared_ptr<Parameter>> b_;
  std::vector<std::weak_ptr<Parameter>> frozen_;
};

// An nn::Linear with an adapter, in its place: x [..., in] -> [..., out]. Children, replaceable:
//   ""            the base, a Layer: an nn::Linear with the Parameter objects of `linear`, so that
//                 these keep their paths, and files their keys. An activation is not the base's but
//                 applied to the sum.
//   lora_dropout  a Layer, nn::Dropout
//   lora_A        a Layer (in -> sum of ranks), an nn::Linear without bias
//   lora_B        a LoraUpdate
// so that parameters are "h.0.attn.c_attn.weight", "h.0.attn.c_attn.lora_A.weight",
// "h.0.attn.c_attn.lora_B.q_proj.weight", and "h.0.attn.c_attn.lora_B.weight" if the matrix is not
// a fused one. Throws ArgumentError if the slices' rows are not those of the layer, if no slice has
// a rank, or if one is larger than the slice's rows or the inputs.
class LoraLinear : public LoraAdapter, public Layer {
 public:
  LoraLinear(const Linear& linear, std::vector<LoraSlice> slices, double dropout = 0);

  const std::string& adapter_path() const override { return path(); }
  std::shared_ptr<Module> without() const override;
  Activation activation() const { return activation_; }
  Child<Layer>& base() { return base_; }
  Child<Layer>& lora_dropout() { return dropout_; }
  Child<Layer>& lora_a() { return a_layer_; }
  Child<LoraUpdate>& lora_b() { return update_; }

 protected:
  Tensor Forward(const Tensor& x) override;

 private:
  Activation activation_;
  Child<Layer> base_, dropout_, a_layer_;
  Child<LoraUpdate> update_;
};

// An nn::BranchLinear with an adapter, in its place, as LoraLinear is for an nn::Linear: the base,
// and lora_A, are BranchLayers (an nn::BranchLinear each), which have an open bias or none.
class LoraBranchLinear : public LoraAdapter, public BranchLayer {
 public:
  LoraBranchLinear(const BranchLinear& linear, std::vector<LoraSlice> slices, double dropout = 0);

  const std::string& adapter_path() const override { return path(); }
  std::shared_ptr<Module> without() const override;
  Child<BranchLayer>& base() { return base_; }
  Child<Layer>& lora_dropout() { return dropout_; }
  Child<BranchLayer>& lora_a() { return a_layer_; }
  Child<LoraUpdate>& lora_b() { return update_; }

 protected:
  ops::Branch Forward(ops::Branch x) override;

 private:
  Child<BranchLayer> base_;
  Child<Layer> dropout_;
  Child<BranchLayer> a_layer_;
  Child<LoraUpdate> update_;
};

// An nn::GroupedLinear with an adapter for each expert, in its place: rows [R, in] and offsets ->
// [R, out], with the A and B of a row's expert, all of the same ranks. Children, replaceable:
//   ""            the base, an ExpertsLayer: an nn::GroupedLinear with the Parameter of `linear`
//   lora_dropout  a Layer, nn::Dropout, whose x is [1, R, in], all rows of a micro-batch
//   lora_A        an ExpertsLayer, an nn::GroupedLinear
//   lora_B        another for each slice that has an adapter: lora_B.gate_proj, ...; lora_B if it
//                 has all rows
// so that parameters are "h.0.mlp.experts.c_fc.lora_A.weight" [n_expert, sum of ranks, in] and
// "h.0.mlp.experts.c_fc.lora_B.gate_proj.weight" [n_expert, rows, rank]. Throws as LoraLinear does.
class LoraGroupedLinear : public LoraAdapter, public ExpertsLayer {
 public:
  LoraGroupedLinear(const GroupedLinear& linear, std::vector<LoraSlice> slices, double dropout = 0);

  const std::string& adapter_path() const override { return path(); }
  std::shared_ptr<Module> without() const override;
  Child<Layer>& lora_dropout() { return dropout_; }
  // The forward by other means: `product` multiplies rows by the weights of one of the children.
  using Product = std::function<Tensor(Child<ExpertsLayer>& linear, const Tensor& rows)>;
  Tensor Apply(const Tensor& rows, const Product& product);

 protected:
  Tensor Forward(const Tensor& rows, const Tensor& offsets) override;

 private:
  Child<ExpertsLayer> base_;
  Child<Layer> dropout_;
  Child<ExpertsLayer> a_layer_;
  std::vector<std::unique_ptr<Child<ExpertsLayer>>> b_layers_;  // null: without an adapter
};

// The adapters of a model, in the order of its modules. With them the model has names.
std::vector<LoraAdapter*> LoraAdapters(Module& model);

// Their parameters, by their names in the model.
std::vector<std::pair<std::string, std::shared_ptr<Parameter>>> LoraParameters(const Module& model);

// As long as it lives, adapters add nothing in this thread's forwards, which have the bits that
// they have while B is zero: the model is the one that they were added to, the reference of
// preference tuning. It turns gradients off.
class LoraDisabled {
 public:
  LoraDisabled();
  ~LoraDisabled();
  LoraDisabled(const LoraDisabled&) = delete;
  LoraDisabled& operator=(const LoraDisabled&) = delete;

 private:
  NoGrad no_grad_;
};

}  // namespace lockstep::nn
