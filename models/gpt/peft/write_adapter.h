// Writes the adapters of a Gpt as PEFT's files (adapter.h).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/io/safetensors_writer.h"
#include "models/gpt/hf/hf_format.h"
#include "models/gpt/peft/adapter_config.h"

namespace lockstep::models {

// The entry of the metadata of adapter_model.safetensors with HashOfWeights of what the adapter
// belongs to. Only Lockstep reads it.
inline constexpr char kBaseHashEntry[] = "lockstep.weights_hash";
// The one with lora.base, where these weights were in 4 bits when the adapter was trained.
inline constexpr char kBaseKindEntry[] = "lockstep.base_kind";

// What adapter_config.json says about a model's adapters: targets, ranks and scales, and in
// modules_to_save what else is trainable, but not the base and the dropout. `rank_stabilized` says
// which formula turns alphas into scales.
PeftConfig PeftConfigOf(Gpt& model, bool rank_stabilized);

// The tensors of adapter_model.safetensors: A and B of all adapters, and what else is trainable. As
// for ToHfTensors, all ranks of a sharded model produce the items together. `dtype_of` is the dtype
// of what `weight` returns; by default that of the parameter's value.
std::vector<SafetensorsItem> ToPeftTensors(const Gpt& model);
std::vector<SafetensorsItem> ToPeftTensors(
    const Gpt& model, const WeightSource& weight,
    const std::function<DType(const Parameter&)>& dtype_of = {});

// Fills a folder, which is made if there is none, from a model that this process has as a whole. An
// empty hash is left out.
void WriteAdapter(const std::string& folder, const Gpt& model, const PeftConfig& config,
                  const std::string& base_hash);

}  // namespace lockstep::models
