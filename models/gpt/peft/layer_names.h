// What adapters' files call the modules of a Gpt.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/gpt/gpt.h"
#include "models/gpt/hf/hf_format.h"

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
};
// In the order of the model's parameters, then quantised ones, whether they have adapters or not.
// The embedding, the head, and the matrices of experts are not among them.
std::vector<AdaptableLayer> AdaptableLayers(const Gpt& model);
// "q_proj, k_proj, ...": the ends of the names of their parts, each once.
std::string AdaptableNames(const std::vector<AdaptableLayer>& layers);

// The rows of a parameter that are a tensor of a module.
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
