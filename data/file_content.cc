#include "data/file_content.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <sstream>

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/sha256.h"
#include "core/thread_pool.h"

namespace lockstep::data {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
// More than the steps in which any file system counts time.
constexpr int64_t kRecent = 2 * kSecond;
constexpr int64_t kBlockBytes = int64_t{1} << 23;

int64_t Nanoseconds(const timespec& time) { return int64_t{time.tv_sec} * kSecond + time.tv_nsec; }

}  // namespace

std::string ToLine(const FileContent& content) {
  return StrCat(content.sha256, " ", content.largest, " ", content.recent ? "recent" : "settled",
                " ", content.stamp);
}

FileContent ParseFileContent(std::string_view line, const std::string& source) {
  std::istringstream in{std::string(line)};
  FileContent content;
  std::string age;
  in >> content.sha256 >> content.largest >> age >> std::ws;
  std::getline(in, content.stamp);
  if (!in.eof() || content.stamp.empty() || content.sha256.size() != 64 || content.largest < 0 ||
      (age != "recent" && age != "settled")) {
    throw InputError(StrCat(source, ": ", line,
                            ": this does not say what a file of data holds: the file is damaged"));
  }
  content.recent = age == "recent";
  return content;
}

FileContent StampOf(const std::string& path, std::string_view kind) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) ThrowIoError("look at", path, errno);
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  const int64_t written = Nanoseconds(info.st_mtim), changed = Nanoseconds(info.st_ctim);
  return {.path = path,
          .sha256 = {},
          .stamp = StrCat(info.st_size, " ", written, " ", changed, " ", info.st_ino, " ", kind),
          .recent = Nanoseconds(now) - std::max(written, changed) < kRecent};
}

bool FindContent(std::span<const FileContent> known, std::span<const std::byte> bytes,
                 int64_t (*largest)(std::span<const std::byte>), FileContent* content) {
  const auto found = std::ranges::find(known, content->stamp, &FileContent::stamp);
  if (found != known.end()) {
    content->sha256 = found->sha256;
    content->largest = found->largest;
    return true;
  }
  const auto size = std::ssize(bytes);
  std::vector<std::string> hashes((size + kBlockBytes - 1) / kBlockBytes);
  std::vector<int64_t> maxima(hashes.size());
  ParallelFor(size, kBlockBytes, [&](int64_t begin, int64_t end) {
    const auto block = bytes.subspan(begin, end - begin);
    hashes[begin / kBlockBytes] = Sha256Of(block);
    if (largest != nullptr) maxima[begin / kBlockBytes] = largest(block);
  });
  Sha256 all;
  for (const std::string& hash : hashes) all.Update(std::as_bytes(std::span(hash)));
  content->sha256 = all.HexDigest();
  content->largest = maxima.empty() ? 0 : *std::ranges::max_element(maxima);
  return false;
}

}  // namespace lockstep::data
