#include "models/checkpoint/checkpoint_manifest.h"

#include <nlohmann/json.hpp>
#include <span>

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/json.h"
#include "core/io/mapped_file.h"
#include "core/io/sha256.h"
#include "dist/content_hash.h"

namespace lockstep::models {
namespace {

using Json = nlohmann::json;

// 2 has a val_loss.
constexpr int kVersion = 2;

Json Body(const CheckpointManifest& manifest) {
  Json files = Json::array();
  for (const CheckpointManifest::File& file : manifest.files) {
    files.push_back({{"name", file.name}, {"bytes", file.bytes}, {"sha256", file.sha256}});
  }
  Json body = {{"version", manifest.val_loss ? 2 : 1},
               {"step", manifest.step},
               {"serial", manifest.serial},
               {"files", std::move(files)}};
  if (manifest.val_loss) body["val_loss"] = *manifest.val_loss;
  return body;
}

// Such a name stays inside the checkpoint's folder.
bool IsPlainFileName(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

}  // namespace

std::string ManifestText(const CheckpointManifest& manifest) {
  const Json body = Body(manifest);
  return DumpJson(Json{{"checkpoint", body}, {"sha256", Sha256Of(DumpJson(body))}}, 2) + "\n";
}

CheckpointManifest ParseManifest(std::string_view text, const std::string& source) {
  CheckpointManifest manifest;
  try {
    const Json body = ParseJson(text, source).at("checkpoint");
    if (const int64_t version = IntegerOf(body.at("version")); version > kVersion) {
      throw InputError(StrCat(source, ": made by a newer Lockstep (version ", version,
                              " of the format, this one reads ", kVersion, "); update Lockstep"));
    }
    manifest.step = IntegerOf(body.at("step"));
    manifest.serial = IntegerOf(body.at("serial"));
    if (body.contains("val_loss")) manifest.val_loss = body.at("val_loss").get<double>();
    for (const Json& file : body.at("files")) {
      manifest.files.push_back({file.at("name"), IntegerOf(file.at("bytes")), file.at("sha256")});
    }
  } catch (const Json::exception& error) {
    throw InputError(StrCat(source, ": damaged: ", error.what()));
  }
  if (ManifestText(manifest) != text) {
    throw InputError(StrCat(source, ": damaged: its own SHA-256 or its layout is wrong"));
  }
  for (const CheckpointManifest::File& file : manifest.files) {
    if (!IsPlainFileName(file.name)) {
      throw InputError(StrCat(source, ": ", Quoted(file.name), " is not a valid file name"));
    }
  }
  return manifest;
}

uint64_t HashOfContent(const std::string& folder) {
  const std::string list = JoinPath(folder, kManifestName);
  if (PathExists(list)) return dist::HashBytes(MappedFile(list).bytes());
  uint64_t hash = 0;
  for (const std::string& name : ListDirectory(folder)) {
    if (!name.ends_with(".safetensors") && !name.ends_with(".json")) continue;
    hash = dist::HashBytes(std::as_bytes(std::span(name)), hash);
    hash = dist::HashBytes(MappedFile(JoinPath(folder, name)).bytes(), hash);
  }
  return hash;
}

}  // namespace lockstep::models
