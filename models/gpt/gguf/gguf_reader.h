// A GGUF file as Hugging Face's folder of the same model.
#pragma once

#include <memory>
#include <string>

#include "data/tokenizer/tokenizer.h"
#include "models/gpt/gguf/gguf_file.h"
#include "models/gpt/gpt_config.h"
#include "models/gpt/hf/stored_tensors.h"
#include "models/gpt/peft/adapter_config.h"

namespace lockstep::models {

inline constexpr char kGgufEmbedding[] = "token_embd.weight";

// Its config.json, of the families that export_gpt writes (GgufArchitectures). InputError that
// names file and key for other architectures, for what is missing, and for keys of the architecture
// that Lockstep does not know, since what they say could change the numbers. What GGUF does not say
// is: llama3's low_freq_factor and high_freq_factor are 1 and 4, as in all published models, and
// checked against rope_freqs.weight; GPT-2's linear layers have biases.
std::string HfConfigOf(const GgufFile& file);

// Its tensors: unquantised ones with their bits, but for Gemma's norms, from which 1 is subtracted;
// quantised ones in f32 (Dequantize). InputError lists the tensors that are missing or unknown.
StoredTensors HfTensorsOf(const GgufFile& file);

struct GgufAdapter {
  PeftConfig config;
  StoredTensors tensors;  // by PEFT's names
};
// The adapter that llama.cpp reads from the file (--lora), of a model of this shape, whatever
// adapters that has itself: NAME.lora_a [rank, in] and NAME.lora_b [out, rank] of its matrices
// NAME, with their bits, and alpha / rank times B A to be added, or, where alpha is 0, B A.
// InputError that names file and key or tensor for other kinds of adapters, other architectures,
// and tensors of what cannot have an adapter. Shapes are not compared with the model's.
GgufAdapter GgufAdapterOf(const GgufFile& file, const GptConfig& base);

// Its tokenizer, with the file's chat templates in ConfigJson; null if it has none. Byte-level ones
// ("gpt2") with a cut that GgufWords knows, those of SentencePiece's BPE ("llama"), whose merges
// are those that make a token, by its score, and characters or bytes as Lockstep writes them
// ("rwkv"). InputError names the key of others, and what to do.
std::unique_ptr<data::Tokenizer> TokenizerOf(const GgufFile& file);

}  // namespace lockstep::models
