// The windows of Qwen 2 and 3.
#pragma once

#include "models/gpt/hf/llama_keys.h"

namespace lockstep::models {

// There are windows only with "use_sliding_window", and then only in layers from
// "max_window_layers" on.
void ReadQwenWindows(const Fields& f, GptConfig* c);
void WriteQwenWindows(const GptConfig& c, OrderedJson* j);

}  // namespace lockstep::models
