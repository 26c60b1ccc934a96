// The model that a program runs, as its user names it: sample_gpt's and evaluate's options.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/device.h"
#include "data/tokenizer/tokenizer.h"
#include "dist/tensor/tensor_ranks.h"
#include "models/checkpoint/held_checkpoint.h"
#include "models/gpt/gpt.h"
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
  bool averages = false;
  GptConfig shape;

  const std::string& folder() const { return held.path(); }
};

// `verifies`: whether this rank also reads all files and compares their hashes, and warns, in the
// name of the program, of adapters that may belong to other weights. InputError for folders and
// adapters that do not fit together.
OpenedModel OpenModel(const ModelSource& source, const std::string& program, bool verifies);

// A command for the same model, "bazel run -c opt //tools:serve -- --checkpoint=out"; `label` as
// CommandOf has it.
std::string CommandFor(const std::string& label, const ModelSource& source);

// LoadSampledModel, with the first of the adapters, if there is one.
std::unique_ptr<Gpt> LoadOpenedModel(const OpenedModel& opened, const dist::TensorRanksPtr& ranks,
                                     Device device);

// Returns run(). To an OutOfMemoryError of it adds what would take less: `fewer`, options of this
// program, 4 bits for the weights, and `more`, options for more GPUs (both "" if there are none).
// Where the model cannot be opened again to tell, the error stays as it was.
int AdviseOnMemory(const ModelSource& source, const std::string& fewer, const std::string& more,
                   const std::function<int()>& run);

// The source's tokenizer, or else the folder's; null if there is none. InputError.
std::unique_ptr<data::Tokenizer> TokenizerOf(const ModelSource& source, const std::string& folder);
// The same; InputError if there is none.
std::unique_ptr<data::Tokenizer> RequireTokenizer(const ModelSource& source,
                                                  const std::string& folder);

}  // namespace lockstep::models
