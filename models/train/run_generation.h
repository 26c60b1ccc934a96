// How the model of a run generates text: what it samples from while it trains, and what its
// checkpoints say of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/tokenizer/tokenizer.h"
#include "models/train/run_setup.h"

namespace lockstep::models {

struct SamplePrompt {
  std::vector<int32_t> ids;
  std::vector<int32_t> ends;  // tokens that end the sample; empty: none does
};

// train.sample_prompt. In a run on conversations or pairs of answers it is what a user says: the
// chat template renders it, up to where the assistant answers, and the sample ends with the answer.
// Where it is blank there, which is the default, the first conversation that is held out says it
// (of a mixture, or if none is held out, the first of all). `tokenizer` is the data set's, or one
// for its ids. Throws InputError if the prompt has no tokens, and as the template does.
SamplePrompt MakeSamplePrompt(const RunSetup& setup, const data::Tokenizer& tokenizer);

// generation_config.json of the checkpoints: that of the weights that the run started from, with
// the tokens that end an answer in a run on conversations. "" if nothing is known of either, and
// for adapters, whose base has its own file. Throws InputError if that file is not JSON, and as the
// template does.
std::string GenerationConfigOf(const RunSetup& setup);

}  // namespace lockstep::models
