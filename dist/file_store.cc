#include "dist/file_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <thread>

#include "core/sha256.h"
#include "dist/file_descriptor.h"

namespace lockstep::dist {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr char kOwner[] = "owner";

std::string HostName() {
  std::array<char, 256> name = {};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

class FileStore : public Store {
 public:
  explicit FileStore(std::string folder) : folder_(std::move(folder)) {}

  void Set(const std::string& key, const std::string& value) override {
    CheckValue(key, value);
    CheckNotInterrupted();
    const std::string temporary = WriteTemporary(value);
    if (rename(temporary.c_str(), PathOf(key).c_str()) != 0) Fail("rename", PathOf(key));
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
    const auto deadline = Clock::now() + timeout;
    auto pause = Milliseconds(1);
    while (true) {
      CheckNotInterrupted();
      if (auto value = Read(PathOf(key))) return value;
      if (Clock::now() >= deadline) return std::nullopt;
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 2, Milliseconds(20));
    }
  }

  int64_t Add(const std::string& key, int64_t delta) override {
    CheckKey(key);
    CheckNotInterrupted();
    const std::string path = PathOf(key) + ".number";
    const FileDescriptor file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (file.fd() < 0) Fail("open", path);
    // Until the descriptor is closed.
    if (flock(file.fd(), LOCK_EX) != 0) Fail("flock", path);
    uint64_t number = 0;
    if (pread(file.fd(), &number, sizeof(number), 0) < 0) Fail("read", path);
    number += static_cast<uint64_t>(delta);
    if (pwrite(file.fd(), &number, sizeof(number), 0) != sizeof(number)) Fail("write", path);
    return static_cast<int64_t>(number);
  }

  std::unique_ptr<Store> Clone() override { return std::make_unique<FileStore>(folder_); }
  void Interrupt() override { interrupted_ = true; }
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
                              "; give each run a folder of its own, or remove it"));
    }
  }

 private:
  std::string PathOf(const std::string& key) const { return folder_ + "/" + Sha256Of(key); }

  // Of no other process, thread or call.
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
      if (n < 0 && errno != EINTR) Fail("write", path);
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
        throw StoreError(StrCat(Describe(), ": ", path, " is longer than a value may be"));
      }
    }
  }

  [[noreturn]] void Fail(const char* what, const std::string& path, int code = errno) const {
    throw StoreError(StrCat(Describe(), ": ", what, " of ", path, ": ", std::strerror(code)));
  }
  void CheckNotInterrupted() const {
    if (interrupted_) throw StoreError(Describe() + ": interrupted");
  }

  const std::string folder_;
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
