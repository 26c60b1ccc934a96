// The data of a run, made from its configuration.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/evaluation.h"
#include "models/options/config.h"
#include "models/options/options.h"
#include "models/train/run_setup.h"

namespace lockstep::models {

// data.path, or the sources of data.mix.
std::vector<std::string> SourcesOf(const DataOptions& data);
// Whether samples are pairs of answers, for preference tuning.
bool Prefers(const RunConfig& config);
// Whether the data are rendered by a chat template.
bool HoldsConversations(const RunConfig& config);
// Whether tokens attend only to their own document.
bool MasksDocuments(const RunConfig& config, bool conversations);

// The configuration; a tokenizer that a preset names, not the user, gives way to that of the
// weights or the data, data.tokenizer = "auto": no char tokenizer can be made from token files, and
// those of `prepare` have their own. Written down, it opens the same data again. InputError for a
// malformed manifest.
RunConfig SettleTokenizer(const Options& options, const RunConfig& config);

// Opens the data into `setup`, with the tokenizer and the chat template of the folder `weights`,
// unless the configuration names others; "": the run starts from no weights. InputError.
void OpenData(const RunConfig& config, const std::string& weights, int64_t vocab_size,
              bool conversations, RunSetup* setup);

// What a run measures a validation loss on.
struct ValidationStream {
  std::string name;  // of a source or file; the whole has none
  data::EvalBatches batches;
  int64_t bytes = 0;  // of text in its targets; 0: not known

  // Of a loss in nats per target, if the bytes are known.
  std::optional<double> BitsPerByte(double loss) const;
};
// All validation data, and then each of their parts, if there are several; nothing without any.
// With train.eval_batches the parts share so many among them.
std::vector<ValidationStream> ValidationOf(const RunSetup& setup);

// Steps of the whole run: train.steps, or as many as train.epochs or train.tokens_per_parameter
// take; 0 if the clock will say.
int64_t StepsOf(const RunSetup& setup);

}  // namespace lockstep::models
