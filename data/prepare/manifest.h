// manifest.json: what a folder of prepared tokens consists of, and how it was made.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/text/document_reader.h"
#include "data/token_shards.h"

namespace lockstep::data {

inline constexpr char kManifestName[] = "manifest.json";

// Sums over documents.
struct DocumentCounts {
  int64_t documents = 0;
  int64_t empty = 0;     // documents without text, not among `documents`
  int64_t bytes = 0;     // of text
  int64_t bad_utf8 = 0;  // malformed parts that became U+FFFD
  DocumentCounts& operator+=(const DocumentCounts& other);
  bool operator==(const DocumentCounts&) const = default;
};

// A finished token file and its index.
struct ShardInfo {
  std::string file;  // its name in the folder
  Split split = Split::kTrain;
  int64_t tokens = 0;
  DocumentCounts counts;  // of the documents that begin in it, bytes of the pieces
  std::string sha256, index_sha256;
};

// Where a stream of shards goes on after its last finished one: at token `token` of the document
// (or piece) that lies at `at`, which is document number `document` of all.
struct ShardStart {
  TextPosition at;
  int64_t document = 0, token = 0;
};

struct Manifest {
  // What decides the shards besides sources and tokenizer: keys and values.
  std::map<std::string, std::string> options;
  std::string tokenizer;  // its name
  std::string origin;     // how the user named it
  std::string tokenizer_sha256;
  int64_t vocab_size = 0;
  std::optional<int32_t> end_of_text;
  std::vector<SourceFile> sources;  // sha256: empty until it has been read to its end
  std::vector<ShardInfo> shards;
  std::vector<ShardStart> next;  // of an unfinished folder, a stream each; empty: it is complete

  bool complete() const { return next.empty(); }
  int64_t tokens() const;
  DocumentCounts counts() const;

  // Deterministic; ends with a newline.
  std::string ToJson() const;
  // InputError, which begins with `origin`, for anything but what ToJson writes.
  static Manifest FromJson(std::string_view json, const std::string& origin);
};

// Whether a folder has a manifest of `prepare`; other programs also write files of that name.
bool HasManifest(const std::string& folder);
// The manifest of a folder, or nothing if it has none. InputError as FromJson.
std::optional<Manifest> ReadManifest(const std::string& folder);

}  // namespace lockstep::data
