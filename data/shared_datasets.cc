#include "data/shared_datasets.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <utility>

#include "core/error.h"
#include "core/io/json.h"
#include "core/io/mapped_file.h"
#include "core/io/sha256.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

// What is known of a token, beside its id.
constexpr uint32_t kBegins = 1U << 30, kLearnt = 1U << 31;

// A stream of a mapped file.
class MappedTokens : public TokenSource {
 public:
  MappedTokens(std::shared_ptr<const MappedFile> file, std::span<const uint32_t> words,
               bool has_documents, bool has_mask)
      : file_(std::move(file)), words_(words), has_documents_(has_documents), has_mask_(has_mask) {}
  int64_t size() const override { return std::ssize(words_); }
  bool has_documents() const override { return has_documents_; }
  bool has_loss_mask() const override { return has_mask_; }

 private:
  void DoRead(int64_t offset, std::span<int32_t> out) const override {
    for (int32_t& id : out) id = static_cast<int32_t>(words_[offset++] & ~(kBegins | kLearnt));
  }
  void DoReadDocumentStarts(int64_t offset, std::span<int32_t> out) const override {
    for (int32_t& begins : out) begins = (words_[offset++] & kBegins) != 0 ? 1 : 0;
  }
  void DoReadLossMask(int64_t offset, std::span<int32_t> out) const override {
    for (int32_t& learnt : out) learnt = (words_[offset++] & kLearnt) != 0 ? 1 : 0;
  }

  const std::shared_ptr<const MappedFile> file_;
  const std::span<const uint32_t> words_;
  const bool has_documents_, has_mask_;
};

void WriteStream(const TokenSource& source, FileWriter* file) {
  constexpr int64_t kPiece = int64_t{1} << 16;
  std::vector<int32_t> ids, begins, learnt;
  std::vector<uint32_t> words;
  for (int64_t at = 0; at < source.size(); at += kPiece) {
    const auto count = static_cast<size_t>(std::min(kPiece, source.size() - at));
    for (auto* values : {&ids, &begins, &learnt}) values->resize(count);
    words.resize(count);
    source.Read(at, ids);
    if (source.has_documents()) source.ReadDocumentStarts(at, begins);
    source.ReadLossMask(at, learnt);
    for (size_t i = 0; i < count; ++i) {
      words[i] = static_cast<uint32_t>(ids[i]) | kBegins * begins[i] | kLearnt * learnt[i];
    }
    file->Write(std::as_bytes(std::span(words)));
  }
}

// The streams, the counts, what else is said of them, and in how many bytes.
void Write(const Dataset& dataset, std::span<const std::byte> counts, FileWriter* file) {
  Json about = {{"name", dataset.name},
                {"note", dataset.note},
                {"fingerprint", dataset.fingerprint},
                {"tokenizer", dataset.tokenizer->ToJson()},
                {"tokenizer_config", dataset.tokenizer->ConfigJson()}};
  for (const auto& stream : {dataset.train, dataset.val}) {
    if (stream == nullptr) continue;
    WriteStream(*stream, file);
    about["streams"].push_back({stream->size(), stream->has_documents(), stream->has_loss_mask()});
  }
  const std::string text = about.dump();
  const size_t size = text.size();
  file->Write(counts);
  file->Write(text);
  file->Write(std::as_bytes(std::span(&size, 1)));
}

// The streams, and what else is said of them.
Json Map(const std::string& path, std::span<std::byte> counts, Dataset* dataset) {
  const auto file = std::make_shared<const MappedFile>(path);
  const std::span<const std::byte> bytes = file->bytes();
  size_t size = 0;
  std::memcpy(&size, bytes.last(sizeof(size)).data(), sizeof(size));
  const auto text = bytes.last(size + sizeof(size)).first(size);
  Json about = ParseJson({reinterpret_cast<const char*>(text.data()), text.size()}, path);
  const auto* words = reinterpret_cast<const uint32_t*>(bytes.data());
  auto* to = &dataset->train;
  for (const auto& stream : about["streams"]) {
    const size_t count = stream[0];
    *to = std::make_shared<MappedTokens>(file, std::span(words, count), stream[1], stream[2]);
    words += count;
    to = &dataset->val;
  }
  if (!counts.empty()) std::memcpy(counts.data(), words, counts.size());
  return about;
}

// The same for two processes only if they read the same file.
std::string KeyOf(const DatasetOptions& options) {
  std::error_code error;
  return Sha256Of(JoinPath(fs::current_path(error).string(), options.path));
}

}  // namespace

bool TakeShared(const DatasetOptions& options, std::span<std::byte> counts, Dataset* dataset) {
  if (options.shared == nullptr) return false;
  for (const std::string& link : options.shared->links) {
    const size_t space = link.find(' ');
    const std::string path = link.substr(0, space), target = link.substr(space + 1);
    if (target.find(KeyOf(options)) == std::string::npos) continue;
    std::error_code error;  // on another machine it may lead to anything
    if (fs::read_symlink(path, error) != target) continue;
    try {
      const Json about = Map(path, counts, dataset);
      dataset->name = about["name"];
      dataset->note = about["note"];
      dataset->fingerprint = about["fingerprint"];
      dataset->tokenizer = Tokenizer::FromJson(about["tokenizer"].string(), path,
                                               about["tokenizer_config"].get<std::string>());
      dataset->vocab_size = dataset->tokenizer->vocab_size();
      return true;
    } catch (const IoError&) {  // no memory to map it
    }
  }
  return false;
}

void Share(const DatasetOptions& options, std::span<const std::byte> counts, Dataset* dataset) try {
  if (options.shared == nullptr || !options.shared->shares || !dataset->files.empty()) return;
  std::random_device random;
  const std::string name = StrCat("lockstep-", KeyOf(options), "-", random(), random());
  const int fd = memfd_create(name.c_str(), MFD_CLOEXEC);
  if (fd < 0) return;
  FileDescriptor memory(fd, /*size=*/0);
  const std::string path = StrCat("/proc/", fs::read_symlink("/proc/self").string(), "/fd/", fd);
  FileWriter file(path);
  Write(*dataset, counts, &file);
  file.Close();
  Map(path, {}, dataset);
  options.shared->links.push_back(StrCat(path, " ", fs::read_symlink(path).string()));
  options.shared->files.push_back(std::move(memory));
} catch (const IoError&) {               // not enough memory
} catch (const fs::filesystem_error&) {  // no /proc
}

}  // namespace lockstep::data
