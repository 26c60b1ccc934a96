#include "models/checkpoint/adapter_base.h"

#include <fmt/format.h>

#include <filesystem>
#include <iostream>

#include "core/io/file.h"
#include "core/io/json.h"
#include "models/checkpoint/checkpoint_manifest.h"

namespace lockstep::models {
namespace {

std::string NameOf(const std::string& folder) {
  std::error_code ignored;
  const std::filesystem::path path = std::filesystem::weakly_canonical(folder, ignored);
  return BaseName(ignored ? folder : path.string());
}

}  // namespace

std::string HashOfBase(const std::string& folder) {
  return fmt::format("{:016x}", HashOfWeights(folder));
}

void CheckBase(const PeftAdapter& adapter, const std::string& base,
               const std::function<void(const std::string&)>& warn) {
  const std::string hash = adapter.base_hash(), &name = adapter.config().base;
  if (!hash.empty()) {
    if (hash == HashOfBase(base)) return;
    throw InputError(StrCat(adapter.folder(), " has adapters of other weights than those that are ",
                            "now in ", base,
                            name.empty() ? "" : StrCat(" (they were in ", name, ")"),
                            ": put those back, or name the folder that has them as the weights",
                            " (--checkpoint or --init_from)"));
  }
  if (name.empty() || NameOf(name) == NameOf(base)) return;
  const std::string text =
      StrCat(adapter.folder(), ": the adapter says that it belongs to ", Quoted(name),
             ", and nothing tells whether ", base, " has these weights");
  warn ? warn(text) : void(std::cerr << "warning: " << text << "\n");
}

}  // namespace lockstep::models
