#include <iomanip>
#include <sstream>

#include "core/io/file.h"
#include "core/io/json.h"
#include "models/gpt/hf/hf_format.h"

namespace lockstep::models {
namespace {

int64_t BytesOf(const SafetensorsItem& item) {
  return Shape(std::span<const int64_t>(item.shape)).numel() * SizeOf(item.dtype);
}

// Where each file begins in the list of tensors.
std::vector<size_t> Cuts(std::span<const SafetensorsItem> tensors, int64_t max_bytes) {
  std::vector<size_t> begins = {0};
  int64_t bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t more = BytesOf(tensors[i]);
    if (bytes > 0 && bytes + more > max_bytes) {
      begins.push_back(i);
      bytes = 0;
    }
    bytes += more;
  }
  return begins;
}

std::string FileName(size_t file, size_t files) {
  if (files == 1) return "model.safetensors";
  std::ostringstream out;
  out << "model-" << std::setfill('0') << std::setw(5) << file + 1 << "-of-" << std::setw(5)
      << files << ".safetensors";
  return std::move(out).str();
}

}  // namespace

void WriteHfFolder(const std::string& folder, const std::string& config,
                   std::span<const SafetensorsItem> tensors, int64_t max_bytes) {
  MakeDirectories(folder);
  std::vector<size_t> cuts = Cuts(tensors, max_bytes);
  const size_t files = cuts.size();
  cuts.push_back(tensors.size());
  Json weight_map = Json::object();
  int64_t total = 0;
  for (size_t f = 0; f < files; ++f) {
    const auto items = tensors.subspan(cuts[f], cuts[f + 1] - cuts[f]);
    FileWriter file(JoinPath(folder, FileName(f, files)));
    WriteSafetensors(file, items);
    file.Sync();
    file.Close();
    for (const SafetensorsItem& item : items) {
      weight_map[item.name] = FileName(f, files);
      total += BytesOf(item);
    }
  }
  if (files > 1) {
    const Json index = {{"metadata", {{"total_size", total}}},
                        {"weight_map", std::move(weight_map)}};
    WriteFileAtomically(JoinPath(folder, "model.safetensors.index.json"), index.dump(2) + "\n");
  }
  WriteFileAtomically(JoinPath(folder, "config.json"), config);
}

}  // namespace lockstep::models
