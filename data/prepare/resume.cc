#include "data/prepare/resume.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/sha256.h"
#include "data/document_index.h"
#include "data/text/raw_input.h"

namespace lockstep::data {
namespace {

// As `touch -d` and `date -d` read it.
std::string TimeOf(const SourceFile& source) {
  char text[48];
  std::snprintf(text, sizeof(text), "@%lld.%09lld",
                static_cast<long long>(source.modified_ns / 1'000'000'000),
                static_cast<long long>(source.modified_ns % 1'000'000'000));
  return text;
}

std::string Sha256OfFirst(int64_t bytes, const std::string& path) {
  RawInput input(path);
  Sha256 hash;
  while (bytes > 0) {
    const std::span<const char> next = input.Peek();
    if (next.empty()) break;
    const size_t n = std::min<size_t>(bytes, next.size());
    hash.Update(std::as_bytes(next.first(n)));
    input.Skip(n);
    bytes -= static_cast<int64_t>(n);
  }
  return hash.HexDigest();
}

// How a source differs from the one in the manifest, a line, or "". Manifests of earlier versions
// have no times. A file of another time may have the same bytes: the hash of those that have been
// read tells, except in manifests of earlier versions, which have it of whole files only. What has
// not been read may be new. `has_tokens`: some tokens were made from the source.
std::string Difference(const SourceFile& was, const SourceFile& now, bool has_tokens) {
  if (was.path == "-") return "";
  if (was.bytes != now.bytes) {
    return StrCat("\n  bytes of ", now.path, ": ", was.bytes, " -> ", now.bytes);
  }
  if (was.modified_ns == 0 || was.modified_ns == now.modified_ns) return "";
  const bool whole = !was.sha256.empty();
  if (whole || was.read_bytes > 0) {
    const std::string& old = whole ? was.sha256 : was.read_sha256;
    const std::string sha256 = Sha256OfFirst(whole ? was.bytes : was.read_bytes, now.path);
    if (sha256 == old) return "";
    return StrCat("\n  SHA-256 of ",
                  whole ? "" : StrCat("the first ", was.read_bytes, " bytes of "), now.path, ": ",
                  old.substr(0, 12), " -> ", sha256.substr(0, 12));
  }
  if (!has_tokens) return "";
  return StrCat("\n  modification time of ", now.path, ": ", TimeOf(was), " -> ", TimeOf(now),
                " (if you know that its text is the same: touch -d ", TimeOf(was), " '", now.path,
                "')");
}

// How the folder's manifest differs from what would be made now, a line each; "" if it does not.
std::string Differences(const Manifest& was, const Manifest& now) {
  std::string text;
  const auto compare = [&](const std::string& what, const std::string& a, const std::string& b) {
    if (a != b) text += StrCat("\n  ", what, ": ", a, " -> ", b);
  };
  for (const auto& [key, value] : now.options) {
    const auto old = was.options.find(key);
    compare(key, old == was.options.end() ? "(absent)" : old->second, value);
  }
  compare("tokenizer", StrCat(was.tokenizer, " (", was.tokenizer_sha256.substr(0, 12), ")"),
          StrCat(now.tokenizer, " (", now.tokenizer_sha256.substr(0, 12), ")"));
  compare("vocabulary", StrCat(was.vocab_size), StrCat(now.vocab_size));
  compare("number of source files", StrCat(was.sources.size()), StrCat(now.sources.size()));
  if (was.sources.size() != now.sources.size()) return text;
  for (size_t i = 0; i < now.sources.size(); ++i) {
    compare(StrCat("source file ", i), was.sources[i].path, now.sources[i].path);
  }
  if (!text.empty()) return text;  // before sources are read
  int64_t last = -1;               // source that tokens were made from
  for (const ShardStart& start : was.next) last = std::max(last, start.at.file);
  for (size_t i = 0; i < now.sources.size(); ++i) {
    text += Difference(was.sources[i], now.sources[i], static_cast<int64_t>(i) <= last);
  }
  return text;
}

// Standard input can't be opened again, so what a folder was made from is compared as it is read.
void CompareStandardInput(const std::string& folder, const Manifest& found) {
  if (!found.complete()) {
    throw InputError(StrCat(folder,
                            " was begun from standard input, and nothing tells whether the "
                            "same text comes now. Remove the folder and repeat the command, or "
                            "write the text into a file: a call that reads files goes on where it "
                            "was interrupted"));
  }
  RawInput input("-");
  while (const size_t n = input.Peek().size()) input.Skip(n);
  const SourceFile& was = found.sources.front();
  if (input.Sha256Hex() == was.sha256) return;
  throw InputError(StrCat(folder, " was made from another standard input: ", was.bytes,
                          " bytes with SHA-256 ", was.sha256.substr(0, 12), " -> ",
                          input.bytes_read(), " bytes with ", input.Sha256Hex().substr(0, 12),
                          "\nChoose another --out_dir, or remove this one"));
}

void RemoveUnfinished(const std::string& folder) {
  for (const std::string& file : ListDirectory(folder)) {
    if (file.starts_with('.') && (file.ends_with(".bin.tmp") || file.ends_with(".idx.tmp"))) {
      RemoveTree(JoinPath(folder, file));
    }
  }
}

// Throws if the folder holds token files that no manifest lists; else removes what a call that
// ended before its first shard has left there.
void RequireNoTokenFiles(const std::string& folder) {
  RemoveUnfinished(folder);
  for (const std::string& file : ListDirectory(folder)) {
    if (!file.ends_with(".bin")) continue;
    throw InputError(StrCat(folder, " holds token files (", file, "), but no ", kManifestName,
                            " that lists them; choose another --out_dir, or remove them"));
  }
}

}  // namespace

OutFolder::OutFolder(std::string path) : path_(std::move(path)) {
  for (std::string folder = path_; !PathExists(folder); folder = ParentPath(folder)) {
    made_.push_back(folder);
  }
  had_tokenizer_ = PathExists(JoinPath(path_, "tokenizer.json")) && !HasManifest(path_);
  MakeDirectories(path_);
}

void OutFolder::TakeBack(const Manifest& manifest) const {
  RemoveUnfinished(path_);
  for (const ShardInfo& shard : manifest.shards) {
    const std::string file = JoinPath(path_, shard.file);
    RemoveTree(file);
    RemoveTree(IndexPathOf(file));
  }
  RemoveTree(JoinPath(path_, kManifestName));
  if (!had_tokenizer_) RemoveTree(JoinPath(path_, "tokenizer.json"));
  if (!made_.empty()) RemoveTree(JoinPath(path_, ".lock"));
  for (const std::string& folder : made_) {
    std::error_code not_empty;
    std::filesystem::remove(folder, not_empty);
  }
}

bool Resume(const std::string& folder, Manifest* manifest) {
  const std::optional<Manifest> found = ReadManifest(folder);
  const std::string differences = found ? Differences(*found, *manifest) : "";
  const bool has_shards = found && !found->shards.empty();
  if (!found || (!has_shards && !differences.empty())) {
    RequireNoTokenFiles(folder);
    return false;
  }
  if (!differences.empty()) {
    throw InputError(StrCat(folder, " was made from something else:", differences,
                            "\nChoose another --out_dir, or remove this one"));
  }
  if (has_shards && found->sources.front().path == "-") CompareStandardInput(folder, *found);
  for (const ShardInfo& shard : found->shards) {
    const std::string path = JoinPath(folder, shard.file);
    for (const std::string& file : {path, IndexPathOf(path)}) {
      if (!PathExists(file)) {
        throw InputError(StrCat(file, " is missing, although ", kManifestName,
                                " lists it; remove the folder and prepare again"));
      }
    }
  }
  if (!found->complete() && found->next.size() != manifest->next.size()) {
    throw InputError(
        StrCat(JoinPath(folder, kManifestName), ": \"next\" does not fit the options"));
  }
  const std::vector<SourceFile> sources = std::exchange(*manifest, *found).sources;
  for (size_t i = 0; i < sources.size(); ++i) {
    SourceFile& source = manifest->sources[i];
    if (source.modified_ns != 0) source.modified_ns = sources[i].modified_ns;
  }
  return true;
}

void VerifyHashes(const std::string& folder, const Manifest& manifest) {
  for (const ShardInfo& shard : manifest.shards) {
    const std::string path = JoinPath(folder, shard.file), index = IndexPathOf(path);
    for (const auto& [file, sha256] :
         {std::pair(path, shard.sha256), std::pair(index, shard.index_sha256)}) {
      if (Sha256OfFile(file) == sha256) continue;
      throw InputError(StrCat(file, " has changed: its SHA-256 is not the one in ", kManifestName,
                              "; remove the folder and prepare again"));
    }
  }
}

}  // namespace lockstep::data
