// Adapters in GGUF, as llama.cpp's convert_lora_to_gguf.py writes them (llama-cli --lora FILE).
#pragma once

#include <string>

#include "models/export/gguf_model.h"
#include "models/gpt/peft/adapter.h"

namespace lockstep::models {

// A and B of each matrix, as NAME.lora_a [rank, in] and NAME.lora_b [out, rank] in f32, f16 or
// bf16, where NAME is the matrix in ToGguf's file; Llama's queries and keys have their rows
// reordered as there. llama.cpp adds alpha / rank times B A: where that is not the adapter's scale,
// since it has patterns of ranks or alphas, B is multiplied by the rest.
//
// Throws InputError if the adapter does not fit the model, if it holds whole weights
// (modules_to_save), and as ToGguf for models that llama.cpp lacks.
GgufModel ToGgufAdapter(const GptConfig& config, const PeftAdapter& adapter, GgufType type,
                        const std::string& name);

}  // namespace lockstep::models
