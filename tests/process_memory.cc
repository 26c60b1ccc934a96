#include "tests/process_memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <stdexcept>
#include <vector>

namespace lockstep {
namespace {

struct Range {
  uint64_t begin, end;
};

std::vector<Range> WritableRanges(pid_t pid) {
  std::vector<Range> ranges;
  std::ifstream maps("/proc/" + std::to_string(pid) + "/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0, end = 0;
    char access[5] = {};
    if (std::sscanf(line.c_str(), "%lx-%lx %4s", &begin, &end, access) != 3) continue;
    // A larger mapping is a sanitizer's shadow memory, terabytes of it.
    constexpr unsigned long kLargest = 4ul << 30;
    if (access[0] == 'r' && access[1] == 'w' && end - begin <= kLargest) {
      ranges.push_back({begin, end});
    }
  }
  return ranges;
}

}  // namespace

std::optional<int> ReplaceInMemory(pid_t pid, std::string_view pattern,
                                   std::string_view replacement) {
  if (pattern.empty() || pattern.size() != replacement.size())
    throw std::runtime_error("a pattern and its replacement must have the same length");
  const int fd = open(("/proc/" + std::to_string(pid) + "/mem").c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return std::nullopt;
  constexpr uint64_t kChunk = 1 << 20;
  int count = 0;
  std::string text;
  for (const auto& [begin, end] : WritableRanges(pid)) {
    // Chunks overlap, to find what lies across a border.
    for (uint64_t at = begin; at < end; at += kChunk) {
      text.resize(std::min(kChunk + pattern.size() - 1, end - at));
      const ssize_t got = pread(fd, text.data(), text.size(), static_cast<off_t>(at));
      if (got <= 0) continue;  // a mapping that cannot be read, such as a device's
      text.resize(static_cast<size_t>(got));
      for (size_t i = text.find(pattern); i != std::string::npos; i = text.find(pattern, i + 1)) {
        const ssize_t put =
            pwrite(fd, replacement.data(), replacement.size(), static_cast<off_t>(at + i));
        if (put == static_cast<ssize_t>(replacement.size())) ++count;
      }
    }
  }
  close(fd);
  return count;
}

}  // namespace lockstep
