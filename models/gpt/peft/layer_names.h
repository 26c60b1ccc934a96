// What adapters' files call the modules of a Gpt.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "models/gpt/gpt.h"
#include "models/gpt/hf/hf_format.h"
#include "nn/lora/add_lora.h"

namespace lockstep::models {

// A linear layer of a Gpt as it is in Hugging Face's code: one matrix, or several that Gpt stores
// as the rows of one (queries, keys and values; gate and up). Each of these can have an adapter.
struct AdaptableLayer {
  struct Part {
    std::string module;  // "model.layers.0.self_attn.q_proj"
    std::string slice;   // "q_proj", as nn::LoraSlice::name; "" if it is the only one
    int64_t rows = 0;
  };
  std::string path;  // "h.0.attn.c_attn"
  int64_t in_features = 0;
  std::vector<Part> parts = {};
  int64_t expert = -1;  // of "h.0.mlp.experts.c_fc", where each expert is such a layer; -1: none

  // This layer's matrix in a parameter [rows, columns] that may be stacked by experts.
  Tensor Of(const Tensor& all) const;
};
// In the order of the model's parameters, then quantised ones, whether they have adapters or not;
// the experts of a layer one after the other. The embedding and the head are not among them.
std::vector<AdaptableLayer> AdaptableLayers(const Gpt& model);
// `targets` has one for each of `layers`, those without an adapter with ranks of 0 only: those with
// adapters, and of the experts of a layer one, since they have one module. `fail` is called with
// what is wrong, and must throw, where these differ.
std::vector<nn::LoraTarget> JoinExperts(const std::vector<AdaptableLayer>& layers,
                                        std::vector<nn::LoraTarget> targets,
                                        const std::function<void(const std::string&)>& fail);
// "q_proj, k_proj, ...": the ends of the names of their parts, each once.
std::string AdaptableNames(const std::vector<AdaptableLayer>& layers);

// The rows of a parameter that are a tensor of a module. Experts are modules of their own also in
// Lockstep's format, where files have them stacked: "h.0.mlp.experts.3.c_fc".
struct ModuleRows {
  HfRows rows;
  std::string module;  // "model.layers.0.self_attn.q_proj", "transformer.h.0.attn.c_attn"
  std::string kind;    // "weight" or "bias"
};
std::vector<ModuleRows> ModuleRowsOf(const GptConfig& config, const std::string& name,
                                     const Parameter& p);

// The name without "model." or "transformer.", which stands for the bare model within one with a
// head: files of adapters that were trained on the bare model lack it.
std::string WithoutModel(const std::string& module);

}  // namespace lockstep::models
