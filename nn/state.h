// The state of a module in a file: parameters and buffers.
#pragma once

#include <map>
#include <span>
#include <string>

#include "core/io/safetensors_writer.h"
#include "core/module.h"

namespace lockstep::nn {

// All parameters, then all buffers (running statistics), under their paths; they share the module's
// memory. The names, and for our layers shapes and meaning, are those of a PyTorch state_dict.
NamedTensors StateOf(const Module& module);

// Overwrites parameters and buffers with tensors of the same names, shapes and dtypes, in any order
// and on any device. The module has memory (Materialize). Throws InputError naming the tensor if
// one is missing, unknown, given twice or different; nothing has changed then.
void LoadState(Module& module, const NamedTensors& state);
// Throws what LoadState would.
void CheckState(const Module& module, const NamedTensors& state);

// The same as a safetensors file; what PyTorch saves by safetensors.torch.save_file can be loaded.
// Throws IoError; loading also InputError, naming the file.
void SaveModule(const Module& module, const std::string& path);
void LoadModule(Module& module, const std::string& path);

// Any tensors as a safetensors file. It is written under another name and then renamed to `path`,
// so that a crash leaves the old file or the new one. Throws as WriteSafetensors.
void SaveTensors(const std::string& path, std::span<const SafetensorsItem> items,
                 const std::map<std::string, std::string>& metadata = {});

}  // namespace lockstep::nn
