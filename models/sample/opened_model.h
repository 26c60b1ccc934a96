// The model that a program runs, as its user names it: sample_gpt's and evaluate's options.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "data/tokenizer/tokenizer.h"
#include "models/checkpoint/held_checkpoint.h"
#include "models/gpt/gpt_config.h"
#include "models/gpt/peft/adapter.h"
#include "models/options/options.h"

namespace lockstep::models {

struct ModelSource {
  bool averages() const { return weights == "ema"; }

  std::string checkpoint = "out/latest";
  TextList adapters;
  std::string base = "auto";  // BaseFor
  std::string weights = "trained";
  std::string tokenizer;
  std::string device = "auto";
  int64_t threads = 0;
};

void AddSourceOptions(Options& options, ModelSource& source);

// Folders that stay as they are while a trainer goes on.
struct OpenedModel {
  HeldCheckpoint held;
  std::vector<HeldCheckpoint> held_adapters;
  std::vector<PeftAdapter> adapters;  // of the source, each of which belongs to the weights
  std::string base;                   // BaseFor all of them
  GptConfig shape;

  const std::string& folder() const { return held.path(); }
};

// `verifies`: whether this rank also reads all files and compares their hashes, and warns of
// adapters that may belong to other weights. InputError for folders and adapters that do not fit
// together.
OpenedModel OpenModel(const ModelSource& source, bool verifies,
                      const std::function<void(const std::string&)>& warn);

// The source's tokenizer, or else the folder's; null if there is none. InputError.
std::unique_ptr<data::Tokenizer> TokenizerOf(const ModelSource& source, const std::string& folder);

}  // namespace lockstep::models
