// Which matrices of a Gpt get a low-rank adapter.
#pragma once

#include <string>
#include <vector>

#include "models/gpt/gpt.h"
#include "nn/lora/add_lora.h"

namespace lockstep::models {

// The targets that config().lora names, for nn::AddLora: matrices of attention, MLPs and experts by
// their names in Hugging Face's code, "model.layers.3.self_attn.q_proj",
// "transformer.h.3.attn.c_attn" or "model.layers.3.block_sparse_moe.experts.5.w1"; a fused one has
// a slice for each of its names. `targets` is "all", or words between commas; a word names a matrix
// that it equals, or whose name ends with "." and the word, where * stands for any characters;
// PEFT's "all-linear" is "all", and a word that names none in this way is a regular expression for
// whole names, as in PEFT. "all" does not name experts, which are many times larger, and which PEFT
// leaves out, too, where transformers (5 and later) stacks them: "all,experts.*" does. Throws
// ArgumentError, with the names that exist, for a word that names none, and for words that name
// only some experts of a layer.
std::vector<nn::LoraTarget> LoraTargets(const Gpt& model);

// Makes trainable again, after nn::AddLora, the modules that `names` names
// (LoraOptions::modules_to_save): words between commas, each the end of names in Hugging Face's
// code, or of the names of modules that these are in. Throws ArgumentError, with the names that
// exist, for a word that names none; for a part of what is one matrix here; and for embedding and
// head where these are tied.
void TrainSavedModules(Gpt& model, const std::string& names);

// The options, converted to those of layers.
nn::LoraOptions ToNn(const LoraOptions& options);

}  // namespace lockstep::models
