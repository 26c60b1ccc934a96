// Files under names, in a place that may be another machine's: a folder, or a bucket that speaks
// S3.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/system/environment.h"

namespace lockstep::models {

struct StoreOptions {
  // Ends what is under way: it throws.
  std::stop_token stop{};
  // Counts the bytes that went either way, as they go; may be null.
  std::atomic<int64_t>* moved = nullptr;
  // How often a request is sent whose failure may pass. The pauses between are random, up to
  // `backoff`, which doubles each time, up to 20 s.
  int attempts = 8;
  std::chrono::milliseconds backoff{500};
  // Of an object that is written or read in parts, several at a time. S3 takes 5 MiB or more.
  int64_t part_bytes = int64_t{16} << 20;
  // Where credentials, region and endpoint are looked up.
  Environment environment = ProcessEnvironment();
};

// Names consist of parts that are separated by "/". For use by one thread. Every call throws
// InputError for what the user must mend (a wrong key, a missing bucket, no permission) and IoError
// for what may pass; both say what to do, and have no credential in them.
class ObjectStore {
 public:
  struct Object {
    std::string name;
    int64_t bytes = 0;
  };
  using Sink = std::function<void(std::span<const std::byte>)>;

  virtual ~ObjectStore() = default;

  // "s3://bucket/prefix", or the folder: for messages.
  const std::string& place() const { return place_; }

  // Replaces the object. Readers see the old or the new one, never a part.
  virtual void Put(const std::string& name, std::span<const std::byte> bytes) = 0;
  // Gives the object's bytes to `sink`, in order; false if there is none.
  virtual bool Get(const std::string& name, const Sink& sink) = 0;
  // All objects whose names begin with `prefix`, by name.
  virtual std::vector<Object> List(const std::string& prefix) = 0;
  // Does nothing if there is none.
  virtual void Remove(const std::string& name) = 0;
  // Removes what calls of Put have left that were cut off. Nobody else may be writing there.
  virtual void RemoveUnfinished() = 0;

 protected:
  explicit ObjectStore(std::string place) : place_(std::move(place)) {}

 private:
  const std::string place_;
};

// Whether the path is that of a bucket: s3://...
bool IsRemote(std::string_view path);

// Touches nothing yet. InputError for s3://... that is not a bucket's.
std::unique_ptr<ObjectStore> OpenStore(const std::string& path, const StoreOptions& options = {});

// Checks, by writing, reading and removing a small object, that the store can be used.
void CheckWritable(ObjectStore& store);

}  // namespace lockstep::models
