#include "data/prepare/manifest.h"

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/json.h"

namespace lockstep::data {
namespace {

constexpr char kFormat[] = "lockstep tokens";
constexpr int kVersion = 1;

const Json& Member(const Json& object, const char* key) {
  const Json* member = object.Find(key);
  if (member == nullptr) throw InputError(StrCat("\"", key, "\" is missing"));
  return *member;
}

int64_t Count(const Json& object, const char* key) {
  try {
    return IntegerOf(Member(object, key), 0, int64_t{1} << 48);  // sums of these fit
  } catch (const InputError& error) {
    throw InputError(StrCat("\"", key, "\": ", error.what()));
  }
}

std::string Text(const Json& object, const char* key) {
  const Json& value = Member(object, key);
  if (!value.is_string()) throw InputError(StrCat("\"", key, "\" must be a string"));
  return value.get<std::string>();
}

const Json& List(const Json& object, const char* key) {
  const Json& value = Member(object, key);
  if (!value.is_array()) throw InputError(StrCat("\"", key, "\" must be a list"));
  for (const Json& item : value) {
    if (!item.is_object()) throw InputError(StrCat("\"", key, "\" must be a list of objects"));
  }
  return value;
}

const Json& Object(const Json& object, const char* key) {
  const Json& value = Member(object, key);
  if (!value.is_object()) throw InputError(StrCat("\"", key, "\" must be an object"));
  return value;
}

SourceFile SourceFrom(const Json& json) {
  SourceFile source{Text(json, "path"), Count(json, "bytes"), Text(json, "sha256")};
  // Manifests of earlier versions have neither.
  if (const Json* at = json.Find("modified_ns")) source.modified_ns = IntegerOf(*at);
  if (json.contains("read_bytes")) {
    source.read_bytes = Count(json, "read_bytes");
    source.read_sha256 = Text(json, "read_sha256");
  }
  source.empty = json.value("empty", Json()) == true;
  return source;
}

void PutCounts(const DocumentCounts& counts, OrderedJson* json) {
  (*json)["documents"] = counts.documents;
  (*json)["empty"] = counts.empty;
  (*json)["bytes"] = counts.bytes;
  (*json)["bad_utf8"] = counts.bad_utf8;
}

OrderedJson ToJsonObject(const ShardInfo& shard) {
  OrderedJson json;
  json["file"] = shard.file;
  json["split"] = shard.split == Split::kVal ? "val" : "train";
  json["tokens"] = shard.tokens;
  PutCounts(shard.counts, &json);
  json["sha256"] = shard.sha256;
  json["index_sha256"] = shard.index_sha256;
  return json;
}

ShardInfo ShardFrom(const Json& json) {
  ShardInfo shard;
  shard.file = Text(json, "file");
  if (shard.file.empty() || shard.file.starts_with('.') ||
      shard.file.find('/') != std::string::npos) {
    throw InputError(
        StrCat("\"file\": ", Quoted(shard.file), " is not the name of a file in its folder"));
  }
  const std::string split = Text(json, "split");
  if (split != "train" && split != "val") {
    throw InputError(StrCat("\"split\": ", Quoted(split), " is neither train nor val"));
  }
  shard.split = split == "val" ? Split::kVal : Split::kTrain;
  shard.tokens = Count(json, "tokens");
  shard.counts = {Count(json, "documents"), Count(json, "empty"), Count(json, "bytes"),
                  Count(json, "bad_utf8")};
  shard.sha256 = Text(json, "sha256");
  shard.index_sha256 = Text(json, "index_sha256");
  return shard;
}

Manifest FromParsed(const Json& json) {
  if (json.value("format", Json()) != kFormat || json.value("version", Json()) != kVersion) {
    throw InputError(StrCat("expected \"format\": \"", kFormat, "\", \"version\": ", kVersion,
                            ": this is no manifest, or another version's"));
  }
  Manifest manifest;
  const Json& options = Object(json, "options");
  for (const auto& [key, value] : options.items()) {
    manifest.options[key] = Text(options, key.c_str());
  }
  const Json& tokenizer = Object(json, "tokenizer");
  manifest.tokenizer = Text(tokenizer, "name");
  manifest.origin = Text(tokenizer, "origin");
  manifest.tokenizer_sha256 = Text(tokenizer, "sha256");
  manifest.vocab_size = Count(tokenizer, "vocab_size");
  if (const Json& end = Member(tokenizer, "end_of_text"); !end.is_null()) {
    manifest.end_of_text = static_cast<int32_t>(IntegerOf(end, 0, INT32_MAX));
  }
  for (const Json& source : List(json, "sources")) {
    manifest.sources.push_back(SourceFrom(source));
  }
  for (const Json& shard : List(json, "shards")) manifest.shards.push_back(ShardFrom(shard));
  if (json.contains("next")) {
    for (const Json& start : List(json, "next")) {
      // Only of a document in pieces.
      const int64_t piece = start.contains("piece") ? Count(start, "piece") : 0;
      manifest.next.push_back({{Count(start, "file"), Count(start, "record"), piece},
                               Count(start, "document"),
                               Count(start, "token")});
    }
    if (manifest.next.empty()) throw InputError("\"next\" is empty");
  }
  return manifest;
}

}  // namespace

DocumentCounts& DocumentCounts::operator+=(const DocumentCounts& other) {
  documents += other.documents;
  empty += other.empty;
  bytes += other.bytes;
  bad_utf8 += other.bad_utf8;
  return *this;
}

int64_t Manifest::tokens() const {
  int64_t sum = 0;
  for (const ShardInfo& shard : shards) sum += shard.tokens;
  return sum;
}

DocumentCounts Manifest::counts() const {
  DocumentCounts sum;
  for (const ShardInfo& shard : shards) sum += shard.counts;
  for (const SourceFile& source : sources) sum.empty += source.empty;
  return sum;
}

std::string Manifest::ToJson() const {
  OrderedJson json;
  json["format"] = kFormat;
  json["version"] = kVersion;
  json["options"] = OrderedJson::object();
  for (const auto& [key, value] : options) json["options"][key] = value;
  OrderedJson& t = json["tokenizer"];
  t["name"] = tokenizer;
  t["origin"] = origin;
  t["sha256"] = tokenizer_sha256;
  t["vocab_size"] = vocab_size;
  t["end_of_text"] = end_of_text ? OrderedJson(*end_of_text) : OrderedJson();
  json["sources"] = OrderedJson::array();
  for (const SourceFile& source : sources) {
    OrderedJson& item = json["sources"].emplace_back();
    item["path"] = source.path;
    item["bytes"] = source.bytes;
    item["sha256"] = source.sha256;
    if (source.modified_ns != 0) item["modified_ns"] = source.modified_ns;
    if (source.empty) item["empty"] = true;
    if (source.read_bytes == 0) continue;
    item["read_bytes"] = source.read_bytes;
    item["read_sha256"] = source.read_sha256;
  }
  OrderedJson& sum = json["total"];
  sum["tokens"] = tokens();
  PutCounts(counts(), &sum);
  json["shards"] = OrderedJson::array();
  for (const ShardInfo& shard : shards) json["shards"].push_back(ToJsonObject(shard));
  for (const ShardStart& start : next) {
    OrderedJson& item = json["next"].emplace_back();
    item["file"] = start.at.file;
    item["record"] = start.at.record;
    if (start.at.piece > 0) item["piece"] = start.at.piece;
    item["document"] = start.document;
    item["token"] = start.token;
  }
  return json.dump(2) + "\n";
}

Manifest Manifest::FromJson(std::string_view text, const std::string& origin) {
  const Json json = ParseJson(text, origin);
  try {
    if (!json.is_object()) throw InputError("expected an object");
    return FromParsed(json);
  } catch (const InputError& error) {
    throw InputError(StrCat(origin, ": ", error.what()));
  }
}

bool HasManifest(const std::string& folder) {
  const std::string path = JoinPath(folder, kManifestName);
  if (!PathExists(path)) return false;
  const Json json = TryParseJson(ReadFile(path, int64_t{1} << 30));
  return json.is_object() && json.value("format", Json()) == kFormat;
}

std::optional<Manifest> ReadManifest(const std::string& folder) {
  const std::string path = JoinPath(folder, kManifestName);
  if (!PathExists(path)) return std::nullopt;
  return Manifest::FromJson(ReadFile(path, int64_t{1} << 30), path);
}

}  // namespace lockstep::data
