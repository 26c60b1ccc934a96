// The state of a module in a file: parameters and buffers.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/module.h"

namespace lockstep::nn {

// All parameters, then all buffers (running statistics), under their paths; they share the module's
// memory. The names, and for our layers shapes and meaning, are those of a PyTorch state_dict.
NamedTensors StateOf(const Module& module);

// Overwrites parameters and buffers with tensors of the same names, shapes and dtypes, in any order
// and on any device. The module has memory (Materialize). Throws InputError naming the tensor if
// one is missing, unknown, given twice or different; nothing has changed then.
void LoadState(Module& module, const NamedTensors& state);

// The same as a safetensors file; what PyTorch saves by safetensors.torch.save_file can be loaded.
// Throws IoError; loading also InputError, naming the file.
void SaveModule(const Module& module, const std::string& path);
void LoadModule(Module& module, const std::string& path);

}  // namespace lockstep::nn
