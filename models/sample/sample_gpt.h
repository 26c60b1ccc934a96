// sample_gpt: prints text that a trained model generates.
#pragma once

#include <cstdint>
#include <string>

#include "models/options/options.h"
#include "models/sample/opened_model.h"

namespace lockstep::models {

struct SampleConfig : ModelSource {
  TextList prompts;
  std::string prompt_file;
  bool chat = false;
  std::string system;
  std::string chat_template;
  bool special_tokens = true;
  int64_t num_samples = 1;
  int64_t tokens = 200;
  TextList stop;
  bool stop_at_end = true;
  double temperature = 0.8;
  int64_t top_k = 0;
  double top_p = 1;
  double repetition_penalty = 1;
  int64_t seed = 1337;
  bool kv_cache = true;
  int64_t slide = 0;
  int64_t batch_size = 16;
  bool stream = true;
};

void AddSampleOptions(Options& options, SampleConfig& config);

// Prints text to stdout and speed to stderr. Returns the exit code. Throws InputError.
//
// Started as several ranks (ReadRendezvous), each has a part of every layer, and the first prints:
// the text of one process, except for ties within the rounding of f32.
int SampleGpt(const SampleConfig& config);

}  // namespace lockstep::models
