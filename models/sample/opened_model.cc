#include "models/sample/opened_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>

#include "core/system/shell_word.h"
#include "dist/control/rendezvous.h"
#include "dist/launch/rank_device.h"
#include "models/checkpoint/adapter_base.h"
#include "models/checkpoint/checkpoint.h"
#include "models/gpt/hf/hf_format.h"
#include "models/options/invocation.h"
#include "models/sample/sampled_model.h"

namespace lockstep::models {

void AddSourceOptions(Options& options, ModelSource& source) {
  options.Add(
      "checkpoint", &source.checkpoint,
      {.aliases = {"model", "ckpt", "out_dir", "init_from"},
       .doc = "a checkpoint, a run folder (its best checkpoint, else the latest; also the "
              "s3://bucket/prefix of a checkpoint.mirror), a Hugging Face folder, or a GGUF "
              "file"});
  options.Add("adapter", &source.adapters,
              {.aliases = {"lora", "adapters", "lora_path"},
               .doc = "a folder of adapters for the checkpoint's weights (PEFT's or a run's), or a "
                      "GGUF file of llama.cpp's; sample_gpt takes several, each of which continues "
                      "all prompts"});
  options.Add("base", &source.base,
              {.choices = {"auto", "model", "nf4", "nf4_single"},
               .aliases = {"lora.base", "bnb_4bit_quant_type"},
               .doc = "the matrices of attention and MLPs: model (f32), nf4 (4 bits, with 8-bit "
                      "scales), nf4_single (with f32 scales); auto: as the adapter was trained or, "
                      "without one, as in the checkpoint"});
  options.Add("weights", &source.weights,
              {.choices = {"trained", "ema"},
               .aliases = {"ema", "use_ema"},
               .doc = "which of a checkpoint's weights: those that were trained, or their averages "
                      "(ema), which runs with optim.ema keep"});
  options.Add("tokenizer", &source.tokenizer,
              {.doc = "byte, gpt2 or a tokenizer file; empty: the checkpoint's own"});
  options.Add("threads", &source.threads, {.min = 0, .max = 4096, .doc = "CPU threads; 0: all"});
  options.Add("device", &source.device,
              {.doc = "where to compute: auto (a GPU, else the CPU), cpu, cuda[:i], sim[:i] (a "
                      "simulated GPU)"});
}

OpenedModel OpenModel(const ModelSource& source, const std::string& program, bool verifies) {
  OpenedModel opened{.held = HoldCheckpoint(source.checkpoint), .averages = source.averages()};
  const std::string& folder = opened.folder();
  for (const std::string& adapter : source.adapters) {
    opened.held_adapters.push_back(HoldCheckpoint(adapter));
  }
  if (source.averages() && !source.adapters.empty()) {
    throw InputError(
        "--weights=ema are averages of --checkpoint's own weights: with an adapter "
        "that its run has averaged name that run, without --adapter");
  }
  if (verifies) {
    VerifyModelAndBase(folder);
    VerifyModel(folder, source.averages());
    for (const HeldCheckpoint& adapter : opened.held_adapters) VerifyModel(adapter.path());
  }
  opened.shape = ReadHfConfig(WeightsOf(folder));
  for (const HeldCheckpoint& one : opened.held_adapters) {
    opened.adapters.push_back(PeftAdapter::Open(one.path(), opened.shape));
  }
  if (!opened.adapters.empty() && PeftAdapter::Exists(folder)) {
    throw InputError(
        StrCat("--checkpoint=", ShellWord(folder), " has adapters itself: with --adapter name the ",
               "weights that they belong to, --checkpoint=", ShellWord(WeightsOf(folder))));
  }
  opened.base = BaseFor(source.base, folder, opened.adapters);
  for (const PeftAdapter& adapter : opened.adapters) {
    CheckBase(adapter, folder, [&](const std::string& text) {
      if (verifies) std::fprintf(stderr, "%s: warning: %s\n", program.c_str(), text.c_str());
    });
  }
  return opened;
}

std::string CommandFor(const std::string& label, const ModelSource& source) {
  std::string command = CommandOf(label);
  const auto add = [&](const char* option, const std::string& value, const std::string& usual) {
    if (value != usual) command += StrCat(" --", option, "=", ShellWord(value));
  };
  const ModelSource usual;
  add("checkpoint", source.checkpoint, "");
  for (const std::string& adapter : source.adapters) add("adapter", adapter, "");
  add("base", source.base, usual.base);
  add("weights", source.weights, usual.weights);
  add("tokenizer", source.tokenizer, usual.tokenizer);
  add("device", source.device, usual.device);
  return command;
}

std::unique_ptr<Gpt> LoadOpenedModel(const OpenedModel& opened, const dist::TensorRanksPtr& ranks,
                                     Device device) {
  return LoadSampledModel(opened.folder(), opened.base,
                          opened.adapters.empty() ? nullptr : &opened.adapters[0], ranks, device,
                          opened.averages);
}

namespace {

std::vector<std::string> WhatTakesLess(const ModelSource& source, const std::string& fewer,
                                       const std::string& more) {
  const dist::Rendezvous rendezvous = dist::ReadRendezvous();
  const std::string base = OpenModel(source, "", /*verifies=*/false).base;
  std::vector<std::string> less;
  if (!fewer.empty()) less.push_back(fewer);
  if (base == "model") {
    less.push_back("--base=nf4 (4 bits for the matrices of attention and MLPs)");
  }
  // On a CPU the parts would share its memory.
  if (!more.empty() && !dist::DeviceOfRank(source.device, rendezvous).is_cpu()) {
    less.push_back(fmt::format("{} (each GPU has a part of the model)", more));
  }
  return less;
}

}  // namespace

int AdviseOnMemory(const ModelSource& source, const std::string& fewer, const std::string& more,
                   const std::function<int()>& run) {
  try {
    return run();
  } catch (const OutOfMemoryError& e) {
    std::vector<std::string> less;
    try {
      less = WhatTakesLess(source, fewer, more);
    } catch (const std::exception&) {
      // The checkpoint may be gone by now, or the memory: then the error stays as it was.
    }
    if (less.empty()) throw;
    throw OutOfMemoryError(fmt::format("{}. What takes less: {}", e.what(), fmt::join(less, "; ")));
  }
}

std::unique_ptr<data::Tokenizer> TokenizerOf(const ModelSource& source, const std::string& folder) {
  if (source.tokenizer == "char") {
    throw InputError(
        "tokenizer=char needs the text that it was made from: give the checkpoint's own "
        "tokenizer.json");
  }
  if (!source.tokenizer.empty()) return data::MakeTokenizer(source.tokenizer, "");
  return ReadTokenizer(folder);
}

std::unique_ptr<data::Tokenizer> RequireTokenizer(const ModelSource& source,
                                                  const std::string& folder) {
  if (auto tokenizer = TokenizerOf(source, folder)) return tokenizer;
  throw InputError(StrCat(folder, " has no tokenizer: give --tokenizer=gpt2, or the tokenizer's ",
                          "file or folder"));
}

}  // namespace lockstep::models
