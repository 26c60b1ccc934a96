// export_gpt: a trained model in the files of other programs.
#pragma once

#include <string>

#include "models/options/options.h"

namespace lockstep::models {

struct ExportConfig {
  std::string checkpoint = "out";
  std::string adapter;
  std::string weights = "trained";
  std::string format = "hf";
  std::string dtype = "auto";
  std::string out;
  std::string tokenizer;
  double max_file_gb = 5;
};

void AddExportOptions(Options& options, ExportConfig& config);

// Writes the folder (hf) or the file (gguf), with adapters merged, or a file of the adapters alone
// (gguf_lora), and says on stdout what it was, and how much of each adapter rounding took away. One
// parameter of the model is in memory at a time. What exists already is never overwritten, and
// nothing is left of what could not be finished. Returns the exit code. Throws InputError, IoError.
int ExportGpt(const ExportConfig& config);

}  // namespace lockstep::models
