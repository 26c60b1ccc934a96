#include "models/checkpoint/consolidate.h"

#include "core/io/file.h"
#include "models/checkpoint/checkpoint.h"
#include "models/checkpoint/tensor_parts.h"
#include "models/gpt/hf/generation_config.h"
#include "models/gpt/hf/hf_format.h"

namespace lockstep::models {

void Consolidate(const std::string& checkpoint, const std::string& to, int64_t max_bytes) {
  if (PathExists(to)) {
    throw InputError(StrCat(to, " exists already: name a new folder, or remove it"));
  }
  if (!TensorParts::Exist(checkpoint)) {
    throw InputError(StrCat(checkpoint, " has no ", kPartsIndex,
                            ": only a checkpoint in parts needs this, others are Hugging Face "
                            "folders themselves"));
  }
  const TensorParts parts = TensorParts::Open(checkpoint, "model");
  const Gpt model(ReadHfConfig(checkpoint));
  for (const auto& [name, p] : model.NamedParameters()) {
    p->Materialize(kMeta, parts.dtype(name), /*seed=*/0);
  }
  const auto weight = [&](const std::string& name, const Parameter& p) {
    return parts.ReadPart(name, p);
  };
  // A name that nobody else gives: what is there was left by a call that was interrupted.
  const std::string temporary = JoinPath(ParentPath(to), ".tmp-consolidate-" + BaseName(to));
  RemoveTree(temporary);
  try {
    WriteHfFolder(temporary, ReadFile(JoinPath(checkpoint, "config.json")),
                  ToHfTensors(model, weight), max_bytes);
    for (const char* name :
         {"tokenizer.json", "tokenizer_config.json", kGenerationConfig, kBuffersFile}) {
      const std::string file = JoinPath(checkpoint, name);
      if (PathExists(file)) WriteFileAtomically(JoinPath(temporary, name), ReadFile(file));
    }
    RenameDurably(temporary, to);
  } catch (...) {  // it would keep a disk full
    RemoveTree(temporary);
    throw;
  }
}

}  // namespace lockstep::models
