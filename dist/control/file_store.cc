#include "dist/control/file_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <ctime>
#include <filesystem>
#include <mutex>

#include "core/io/sha256.h"
#include "dist/control/file_descriptor.h"
#include "dist/control/socket.h"

namespace lockstep::dist {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr char kOwner[] = "owner";
// The pause between two looks for a key is a fraction of the time waited so far.
constexpr auto kShortestPause = std::chrono::milliseconds(1);
constexpr auto kLongestPause = std::chrono::milliseconds(250);
constexpr int kPauseShare = 4;

class FileStore : public Store {
 public:
  explicit FileStore(std::string folder) : folder_(std::move(folder)) {}

  void Set(const std::string& key, const std::string& value) override {
    CheckValue(key, value);
    CheckNotInterrupted();
    const std::string temporary = WriteTemporary(value);
    if (rename(temporary.c_str(), PathOf(key).c_str()) == 0) return;
    const int code = errno;
    unlink(temporary.c_str());
    Fail("rename", PathOf(key), code);
  }

  std::string SetIfAbsent(const std::string& key, const std::string& value) override {
    CheckValue(key, value);
    CheckNotInterrupted();
    const std::string temporary = WriteTemporary(value);
    const bool first = link(temporary.c_str(), PathOf(key).c_str()) == 0;
    const int code = errno;
    unlink(temporary.c_str());
    if (first) return value;
    if (code != EEXIST) Fail("link", PathOf(key), code);
    const auto there = Read(PathOf(key));
    if (!there) Fail("open", PathOf(key), ENOENT);
    return *there;
  }

  std::optional<std::string> Get(const std::string& key, Milliseconds timeout) override {
    CheckKey(key);
    const std::string path = PathOf(key);
    const auto begin = Clock::now();
    while (true) {
      CheckNotInterrupted();
      struct stat there;
      if (stat(path.c_str(), &there) == 0) {
        if (auto value = Read(path)) return value;
      } else if (errno != ENOENT) {
        Fail("stat", path);
      }
      const auto now = Clock::now();
      if (now - begin >= timeout) return std::nullopt;
      Pause(std::min<Clock::duration>(
          std::clamp<Clock::duration>((now - begin) / kPauseShare, kShortestPause, kLongestPause),
          timeout - (now - begin)));
    }
  }

  int64_t Add(const std::string& key, int64_t delta) override {
    CheckKey(key);
    CheckNotInterrupted();
    const std::string path = NumberPathOf(key);
    const FileDescriptor file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (file.fd() < 0) Fail("open", path);
    // Held until the descriptor is closed.
    if (flock(file.fd(), LOCK_EX) != 0) Fail("flock", path);
    uint64_t number = 0;
    if (pread(file.fd(), &number, sizeof(number), 0) < 0) Fail("read", path);
    number += static_cast<uint64_t>(delta);
    if (pwrite(file.fd(), &number, sizeof(number), 0) != sizeof(number)) Fail("write", path);
    return static_cast<int64_t>(number);
  }

  void Delete(const std::string& key) override {
    CheckKey(key);
    CheckNotInterrupted();
    for (const std::string& path : {PathOf(key), NumberPathOf(key)}) {
      if (unlink(path.c_str()) != 0 && errno != ENOENT) Fail("unlink", path);
    }
  }

  int64_t Bytes() override {
    CheckNotInterrupted();
    int64_t bytes = 0;
    std::error_code error;
    for (fs::directory_iterator at(folder_, error), end; !error && at != end; at.increment(error)) {
      std::error_code gone;  // the file may have been deleted meanwhile
      const auto size = at->file_size(gone);
      if (!gone) bytes += static_cast<int64_t>(size);
    }
    if (error) throw StoreError(StrCat(Describe(), ": cannot be listed: ", error.message()));
    return bytes;
  }

  std::unique_ptr<Store> Clone() override { return std::make_unique<FileStore>(folder_); }
  void Interrupt() override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      interrupted_ = true;
    }
    changed_.notify_all();
  }
  std::string Describe() const override { return StrCat("the store in ", folder_); }

  void Claim() {
    std::error_code error;
    fs::create_directories(folder_, error);
    if (error) throw StoreError(StrCat(Describe(), ": cannot be created: ", error.message()));
    const std::time_t now = std::time(nullptr);
    std::tm utc = {};
    gmtime_r(&now, &utc);
    std::array<char, 32> time = {};
    std::strftime(time.data(), time.size(), "%F %T UTC", &utc);
    const std::string mine = StrCat("process ", getpid(), " on ", HostName(), " at ", time.data(),
                                    ", claim ", NextName());
    const std::string owner = SetIfAbsent(kOwner, mine);
    if (owner != mine) {
      throw StoreError(StrCat(Describe(), " was used by ", owner,
                              "; give each run its own folder, or remove this one"));
    }
  }

 private:
  std::string PathOf(const std::string& key) const { return folder_ + "/" + Sha256Of(key); }
  std::string NumberPathOf(const std::string& key) const { return PathOf(key) + ".number"; }

  // Interrupt ends it early.
  void Pause(Clock::duration time) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, time, [this] { return interrupted_.load(); });
  }

  // Unique across machines, processes, threads and calls.
  static std::string NextName() {
    static std::atomic<int64_t> counter{0};
    return StrCat(HostName(), ".", getpid(), ".", ++counter);
  }

  std::string WriteTemporary(const std::string& value) {
    const std::string path = folder_ + "/.temporary." + NextName();
    const FileDescriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (file.fd() < 0) Fail("open", path);
    size_t done = 0;
    while (done < value.size()) {
      const ssize_t n = write(file.fd(), value.data() + done, value.size() - done);
      if (n < 0 && errno != EINTR) {
        const int code = errno;
        unlink(path.c_str());
        Fail("write", path, code);
      }
      if (n > 0) done += static_cast<size_t>(n);
    }
    return path;
  }

  std::optional<std::string> Read(const std::string& path) const {
    const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (file.fd() < 0) {
      if (errno == ENOENT) return std::nullopt;
      Fail("open", path);
    }
    std::string value;
    std::array<char, 4096> buffer;
    while (true) {
      const ssize_t n = read(file.fd(), buffer.data(), buffer.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) Fail("read", path);
      if (n == 0) return value;
      value.append(buffer.data(), static_cast<size_t>(n));
      if (value.size() > kMaxValue) {
        throw StoreError(StrCat(Describe(), ": ", path, " exceeds the maximum size of a value"));
      }
    }
  }

  [[noreturn]] void Fail(const char* what, const std::string& path, int code = errno) const {
    throw StoreError(StrCat(Describe(), ": ", what, " of ", path, ": ", SystemErrorText(code)));
  }
  void CheckNotInterrupted() const {
    if (interrupted_) throw StoreError(Describe() + ": interrupted");
  }

  const std::string folder_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> interrupted_{false};
};

}  // namespace

std::unique_ptr<Store> OpenFileStore(const std::string& folder, int rank,
                                     std::chrono::milliseconds timeout) {
  auto store = std::make_unique<FileStore>(folder);
  if (rank == 0) {
    store->Claim();
  } else if (!store->Get(kOwner, timeout)) {
    throw StoreError(StrCat(store->Describe(), ": rank 0 did not claim it within ",
                            static_cast<double>(timeout.count()) / 1000,
                            " s; do all ranks see the same folder?"));
  }
  return store;
}

}  // namespace lockstep::dist
