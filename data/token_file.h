// Files of token ids, as nanoGPT and llm.c write them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/io/file.h"
#include "core/io/mapped_file.h"
#include "data/document_index.h"
#include "data/file_content.h"
#include "data/token_source.h"

namespace lockstep::data {

// Little-endian. The formats of llm.c begin with int32[256]: magic, version, number of tokens,
// zeros.
enum class TokenFormat {
  kNanoGpt,      // only uint16 tokens
  kNanoGptWide,  // only uint32 tokens, as such scripts write them for larger vocabularies
  kLlmcGpt2,     // magic 20240520, version 1, uint16 tokens
  kLlmcLlama3,   // magic 20240801, version 7, uint32 tokens
};

std::string_view Name(TokenFormat format);
bool HasHeader(TokenFormat format);
// The format of that name, or nothing.
std::optional<TokenFormat> TokenFormatOf(std::string_view name);
// The size in bytes of a file with this many tokens.
int64_t TokenFileBytes(TokenFormat format, int64_t tokens);

// A memory-mapped token file. The file must not be truncated while it is in use. If the folder has
// an index of its documents (data/document_index.h), that is used.
class TokenFile : public TokenSource {
 public:
  // Recognises the format by its magic number and checks the whole file, so that training meets no
  // bad token later, unless its content is among the `known`. Without a header, tokens are uint32
  // where the file shows it, each odd uint16 being as good as zero; where it is too short to show
  // it, for vocabularies of more than 65,536. Ids must be below `vocab_size`, or without one, below
  // 2^31. Throws InputError for an empty or odd-sized file, a header that does not fit the file, an
  // unknown version, an evaluation file of llm.c, an id out of range (file, position, value, fix),
  // and an index that does not fit the file; IoError for a file that cannot be read.
  explicit TokenFile(std::string path, std::optional<int64_t> vocab_size = std::nullopt,
                     std::span<const FileContent> known = {});

  int64_t size() const override { return size_; }
  bool has_documents() const override { return index_.has_value(); }
  const std::string& path() const { return file_.path(); }
  TokenFormat format() const { return format_; }
  int32_t max_token() const { return static_cast<int32_t>(contents_[0].largest); }
  // What the file holds, and what its index does, if it has one.
  const std::vector<FileContent>& contents() const { return contents_; }
  std::span<const std::byte> bytes() const { return file_.bytes(); }

 private:
  void DoRead(int64_t offset, std::span<int32_t> out) const override;
  std::span<const uint64_t> document_starts() const override;
  void ReadHeader(int64_t limit);
  void CheckRange(int64_t limit, std::span<const FileContent> known);

  MappedFile file_;
  TokenFormat format_ = TokenFormat::kNanoGpt;
  const std::byte* tokens_ = nullptr;
  int64_t size_ = 0;
  std::vector<FileContent> contents_;
  std::optional<DocumentIndex> index_;
};

// Writes a token file piece by piece. It appears under its name only once Finish has returned;
// until then it is built as `.NAME.tmp` in the same folder, which a later writer replaces.
class TokenFileWriter {
 public:
  // `expected` tokens will be written; another number costs a copy of the file in Finish, because
  // llm.c's header has the count. IoError if the file cannot be created.
  TokenFileWriter(std::string path, TokenFormat format, int64_t expected);

  // Throws ArgumentError for an id that does not fit the format, and IoError.
  void Write(std::span<const int32_t> tokens);
  int64_t size() const { return size_; }
  // Makes the file durable and renames it, replacing any file of its name, so readers see the old
  // one or the new one. Returns the file's SHA-256. ArgumentError if there are no tokens, or more
  // than a header can tell.
  std::string Finish();

 private:
  void WriteHeader(int64_t count);
  // Begins the file again, with the number of tokens that were written in its header.
  void CopyWithCount();
  // `piece`: the next tokens.
  [[noreturn]] void FailOutOfRange(std::span<const int32_t> piece) const;

  std::string path_;
  TokenFormat format_;
  int64_t expected_;
  int64_t size_ = 0;
  std::optional<FileWriter> file_;
};

// The same for tokens in memory.
void WriteTokenFile(const std::string& path, TokenFormat format, std::span<const int32_t> tokens);

}  // namespace lockstep::data
