#include "data/token_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <type_traits>

#include "core/error.h"

namespace lockstep::data {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr int64_t kHeaderInts = 256;
constexpr int64_t kHeaderBytes = kHeaderInts * 4;
constexpr int64_t kNarrowTokens = 65536;
constexpr int32_t kMagicEvaluation = 20240522;

struct FormatInfo {
  TokenFormat format;
  std::string_view name;
  int32_t magic;
  int32_t version;
  int64_t token_bytes;
};

constexpr FormatInfo kFormats[] = {
    {TokenFormat::kNanoGpt, "nanoGPT", 0, 0, 2},
    {TokenFormat::kNanoGptWide, "nanoGPT with uint32", 0, 0, 4},
    {TokenFormat::kLlmcGpt2, "llm.c (GPT-2)", 20240520, 1, 2},
    {TokenFormat::kLlmcLlama3, "llm.c (Llama 3)", 20240801, 7, 4},
};

const FormatInfo& Info(TokenFormat format) { return kFormats[static_cast<int>(format)]; }

// The largest of n > 0 tokens.
template <class T>
T Max(const T* tokens, int64_t n) {
  // Independent lanes, so that the compiler uses vector instructions.
  constexpr int64_t kLanes = 64 / sizeof(T);
  std::array<T, kLanes> lanes{};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = std::max(lanes[lane], tokens[i + lane]);
    }
  }
  T result = *std::ranges::max_element(lanes);
  for (; i < n; ++i) result = std::max(result, tokens[i]);
  return result;
}

// Writes the low halves of the tokens and returns the bits that occur in any of them.
uint32_t Narrow(std::span<const int32_t> tokens, uint16_t* out) {
  constexpr size_t kLanes = 16;  // as above
  std::array<uint32_t, kLanes> bits{};
  size_t i = 0;
  for (; i + kLanes <= tokens.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const auto token = static_cast<uint32_t>(tokens[i + lane]);
      bits[lane] |= token;
      out[i + lane] = static_cast<uint16_t>(token);
    }
  }
  for (; i < tokens.size(); ++i) {
    bits[0] |= static_cast<uint32_t>(tokens[i]);
    out[i] = static_cast<uint16_t>(tokens[i]);
  }
  uint32_t all = 0;
  for (const uint32_t lane : bits) all |= lane;
  return all;
}

template <class T>
int64_t LargestOf(std::span<const std::byte> bytes) {
  return Max(reinterpret_cast<const T*>(bytes.data()), std::ssize(bytes) / int64_t{sizeof(T)});
}

// Whether uint16 words are the halves of uint32 tokens: the upper ones say next to nothing, which
// in tokens of 16 bits would have to be so of each second one. Of a file that is too short to tell,
// whether the vocabulary (0: unknown) needs 32 bits.
bool LooksWide(std::span<const std::byte> bytes, int64_t vocab_size) {
  constexpr size_t kFewest = 64, kMost = size_t{1} << 16;
  constexpr int64_t kUpper = 7, kLower = 256;
  const size_t n = std::min(kMost, bytes.size() / 4);
  if (n < kFewest) return vocab_size > kNarrowTokens;
  const auto* words = reinterpret_cast<const uint16_t*>(bytes.data());
  uint16_t upper = 0, lower = 0;  // the largest
  for (size_t i = 0; i < n; ++i) {
    lower = std::max(lower, words[2 * i]);
    upper = std::max(upper, words[2 * i + 1]);
  }
  if (upper == 0) return lower > 0;
  return upper <= std::max(kUpper, vocab_size / kNarrowTokens) && lower >= kLower;
}

}  // namespace

std::string_view Name(TokenFormat format) { return Info(format).name; }
bool HasHeader(TokenFormat format) { return Info(format).magic != 0; }

std::optional<TokenFormat> TokenFormatOf(std::string_view name) {
  for (const FormatInfo& info : kFormats) {
    if (info.name == name) return info.format;
  }
  return std::nullopt;
}

int64_t TokenFileBytes(TokenFormat format, int64_t tokens) {
  const FormatInfo& info = Info(format);
  return (info.magic == 0 ? 0 : kHeaderBytes) + tokens * info.token_bytes;
}

TokenFile::TokenFile(std::string path, std::optional<int64_t> vocab_size,
                     std::span<const FileContent> known)
    : file_(std::move(path)) {
  ReadHeader(vocab_size.value_or(0));
  CheckRange(std::min<int64_t>(vocab_size.value_or(int64_t{1} << 31), int64_t{1} << 31), known);
  const std::string index = IndexPathOf(this->path());
  if (!PathExists(index)) return;
  index_.emplace(index, size_, known);
  contents_.push_back(index_->content());
}

std::span<const uint64_t> TokenFile::document_starts() const {
  return index_ ? index_->starts() : std::span<const uint64_t>();
}

void TokenFile::ReadHeader(int64_t vocab_size) {
  const auto bytes = static_cast<int64_t>(file_.bytes().size());
  if (bytes == 0) {
    throw InputError(StrCat(path(), ": the file is empty; expected token ids"));
  }
  int32_t header[3] = {};
  if (bytes >= kHeaderBytes) std::memcpy(header, file_.bytes().data(), sizeof(header));
  const auto [magic, version, count] = header;
  if (magic == kMagicEvaluation) {
    throw InputError(StrCat(path(), ": this is an evaluation file of llm.c (magic ", magic,
                            "), which holds multiple-choice questions, not a stream of tokens; use "
                            "its *_train_*.bin and *_val_*.bin files"));
  }
  tokens_ = file_.bytes().data();
  for (const FormatInfo& info : kFormats) {
    if (info.magic != 0 && info.magic == magic) format_ = info.format;
  }
  if (!HasHeader(format_)) {
    const bool wide = LooksWide(file_.bytes(), vocab_size);
    if (wide) format_ = TokenFormat::kNanoGptWide;
    const int64_t width = Info(format_).token_bytes;
    if (bytes % width != 0) {
      throw InputError(StrCat(path(), ": ", bytes, " bytes are not a whole number of uint",
                              8 * width, " tokens",
                              "; the file is truncated, or not a token file (nanoGPT's uint16, "
                              "uint32 for vocabularies ",
                              "of more than 65,536, or llm.c's with a header)"));
    }
    size_ = bytes / width;
    return;
  }
  const FormatInfo& info = Info(format_);
  if (version != info.version) {
    throw InputError(StrCat(path(), ": version ", version, " of the token format with magic ",
                            magic, ", but only version ", info.version,
                            " is supported; write the file again with a current llm.c"));
  }
  const int64_t announced = TokenFileBytes(format_, count);
  if (count <= 0 || bytes != announced) {
    throw InputError(StrCat(path(), ": the header announces ", count, " tokens, which would make ",
                            announced, " bytes, but the file has ", bytes,
                            "; it is truncated or damaged: write or download it again"));
  }
  tokens_ += kHeaderBytes;
  size_ = count;
}

void TokenFile::CheckRange(int64_t limit, std::span<const FileContent> known) {
  const auto check = [&](const auto* tokens) {
    using Token = std::remove_cvref_t<decltype(*tokens)>;
    FileContent content = StampOf(path(), Name(format_));
    FindContent(known, std::as_bytes(std::span(tokens, static_cast<size_t>(size_))),
                LargestOf<Token>, &content);
    contents_ = {content};
    if (content.largest < limit) return;
    int64_t position = 0;
    while (tokens[position] < limit) ++position;
    throw InputError(StrCat(path(), ": token ", tokens[position], " at position ", position,
                            " is outside the vocabulary of ", limit, " (0 to ", limit - 1,
                            "); the largest in this file is ", content.largest,
                            ". Use the tokenizer and the model.vocab_size that the file was made "
                            "for; if this is not a token file in the format of ",
                            Name(format_), ", convert it"));
  };
  if (Info(format_).token_bytes == 2) {
    check(reinterpret_cast<const uint16_t*>(tokens_));
  } else {
    check(reinterpret_cast<const uint32_t*>(tokens_));
  }
}

void TokenFile::DoRead(int64_t offset, std::span<int32_t> out) const {
  if (Info(format_).token_bytes == 2) {
    std::copy_n(reinterpret_cast<const uint16_t*>(tokens_) + offset, out.size(), out.begin());
  } else {
    std::copy_n(reinterpret_cast<const uint32_t*>(tokens_) + offset, out.size(), out.begin());
  }
}

TokenFileWriter::TokenFileWriter(std::string path, TokenFormat format, int64_t expected)
    : path_(std::move(path)), format_(format), expected_(expected) {
  file_.emplace(TemporaryName(path_), FileWriterOptions{.sha256 = true});
  file_->ExpectBytes(TokenFileBytes(format_, expected));
  WriteHeader(expected);
}

void TokenFileWriter::WriteHeader(int64_t count) {
  const FormatInfo& info = Info(format_);
  if (info.magic == 0) return;
  LS_CHECK(count <= INT32_MAX, path_, ": ", count, " tokens do not fit the header of one ",
           info.name, " file; write several shards");
  const std::array<int32_t, kHeaderInts> header{info.magic, info.version,
                                                static_cast<int32_t>(count)};
  file_->Write(std::as_bytes(std::span(header)));
}

void TokenFileWriter::Write(std::span<const int32_t> tokens) {
  const bool narrow = Info(format_).token_bytes == 2;
  std::array<uint16_t, 4096> narrowed;
  while (!tokens.empty()) {
    const std::span<const int32_t> piece = tokens.first(std::min(tokens.size(), narrowed.size()));
    if (Narrow(piece, narrowed.data()) >> (narrow ? 16 : 31) != 0) FailOutOfRange(piece);
    file_->Write(narrow ? std::as_bytes(std::span(narrowed).first(piece.size()))
                        : std::as_bytes(piece));
    size_ += std::ssize(piece);
    tokens = tokens.subspan(piece.size());
  }
}

void TokenFileWriter::FailOutOfRange(std::span<const int32_t> piece) const {
  const FormatInfo& info = Info(format_);
  const int64_t limit = info.token_bytes == 2 ? int64_t{1} << 16 : int64_t{1} << 31;
  const auto bad = std::ranges::find_if(piece, [&](int32_t t) { return t < 0 || t >= limit; });
  throw ArgumentError(StrCat(path_, ": token ", *bad, " at position ",
                             size_ + (bad - piece.begin()), " does not fit the ", info.name,
                             " format (0 to ", limit - 1, ")"));
}

std::string TokenFileWriter::Finish() {
  LS_CHECK(size_ > 0, path_, ": a token file needs at least one token");
  if (Info(format_).magic != 0 && size_ != expected_) CopyWithCount();
  file_->Sync();
  file_->Close();
  RenameDurably(file_->path(), path_);
  return file_->Sha256Hex();
}

void TokenFileWriter::CopyWithCount() {
  file_->Close();
  const std::string uncounted = file_->path();
  file_.emplace(JoinPath(ParentPath(path_), StrCat(".counted.", BaseName(path_), ".tmp")),
                FileWriterOptions{.sha256 = true});
  WriteHeader(size_);
  size_t skip = kHeaderBytes;
  ReadFileInPieces(uncounted, [&](std::span<const std::byte> piece) {
    const size_t header = std::min(skip, piece.size());
    skip -= header;
    file_->Write(piece.subspan(header));
  });
  RemoveTree(uncounted);
}

void WriteTokenFile(const std::string& path, TokenFormat format, std::span<const int32_t> tokens) {
  TokenFileWriter writer(path, format, static_cast<int64_t>(tokens.size()));
  writer.Write(tokens);
  writer.Finish();
}

}  // namespace lockstep::data
