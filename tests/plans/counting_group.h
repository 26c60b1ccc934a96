// A process group that counts what this rank sends.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "dist/process_group.h"

namespace lockstep::dist {

// What a rank has sent, by group and purpose. Thread-safe.
class Traffic {
 public:
  // The name of the group, and what the caller said that the call is for.
  using Key = std::pair<std::string, std::string>;

  void Add(const std::string& group, const std::string& purpose, int64_t bytes);
  void Clear();
  std::map<Key, int64_t> bytes() const;

 private:
  mutable std::mutex mutex_;
  std::map<Key, int64_t> bytes_;
};

// Does what `group` does, as do the groups that are split from it, and adds to `traffic` the bytes
// that this rank has to send at least, if it does not send what it received: of a collective over n
// ranks on S bytes (of the whole tensor) (n - 1) / n S; for an all_reduce twice that, for a scatter
// of sums and a gather. That is what rings and direct messages send. The root of a broadcast sends
// n - 1 times. What ranks compare and agree on does not count, nor does making groups.
std::shared_ptr<ProcessGroup> MakeCountingGroup(std::shared_ptr<ProcessGroup> group,
                                                std::shared_ptr<Traffic> traffic);

}  // namespace lockstep::dist
