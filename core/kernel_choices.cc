#include "core/kernel_choices.h"

#include <link.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <mutex>
#include <set>

#include "core/error.h"
#include "core/io/json.h"

namespace lockstep {
namespace {

struct Registry {
  std::mutex mutex;
  std::set<std::pair<std::string, std::vector<int64_t>>> problems;
  std::vector<KernelChoice> choices;
  std::set<std::pair<std::string, std::string>> told;  // (op, why_slow)
  int64_t slow = 0;
};

Registry& TheRegistry() {
  static Registry& registry = *new Registry;  // kernels may run while statics are destroyed
  return registry;
}

}  // namespace

bool IsNewProblem(const char* op, std::span<const int64_t> problem) {
  // Those met lately, by their hashes, each in one of a few neighbouring slots.
  constexpr size_t kSlots = 1024, kWays = 8;
  static std::array<std::atomic<uint64_t>, kSlots + kWays> met{};
  uint64_t hash = reinterpret_cast<uintptr_t>(op);
  for (const int64_t number : problem) {
    hash = (hash ^ static_cast<uint64_t>(number)) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 32;
  }
  hash |= 1;  // a free slot has 0
  const size_t first = (hash >> 1) % kSlots;
  for (size_t slot = first; slot < first + kWays; ++slot) {
    uint64_t other = 0;
    if (met[slot].compare_exchange_strong(other, hash, std::memory_order_relaxed)) return true;
    if (other == hash) return false;
  }
  met[first].store(hash, std::memory_order_relaxed);
  return true;
}

void NoteKernelChoice(const char* op, std::span<const int64_t> problem, KernelChoice choice) {
  Registry& registry = TheRegistry();
  const std::lock_guard lock(registry.mutex);
  const bool full = registry.choices.size() == kMaxKernelChoices;
  std::pair<std::string, std::vector<int64_t>> key(op, {problem.begin(), problem.end()});
  if (full ? registry.problems.contains(key) : !registry.problems.insert(std::move(key)).second) {
    return;
  }
  choice.op = op;
  if (!choice.why_slow.empty()) {
    if (!full) ++registry.slow;
    if (registry.told.size() < kMaxKernelChoices &&
        registry.told.emplace(op, choice.why_slow).second) {
      std::fprintf(stderr, "warning: %s of %s is slower than it could be (kernel: %s): %s\n", op,
                   choice.problem.c_str(), choice.kernel.c_str(), choice.why_slow.c_str());
    }
  }
  if (!full) registry.choices.push_back(std::move(choice));
}

std::vector<KernelChoice> KernelChoices() {
  const std::lock_guard lock(TheRegistry().mutex);
  return TheRegistry().choices;
}

int64_t SlowKernelChoices() {
  const std::lock_guard lock(TheRegistry().mutex);
  return TheRegistry().slow;
}

std::vector<std::string> LoadedLibraries(const std::vector<std::string>& prefixes) {
  std::vector<std::string> files;
  const auto add = [](dl_phdr_info* info, size_t, void* to) {
    static_cast<std::vector<std::string>*>(to)->emplace_back(info->dlpi_name);
    return 0;
  };
  dl_iterate_phdr(add, &files);
  std::erase_if(files, [&](const std::string& file) {
    const std::string name = file.substr(file.rfind('/') + 1);
    return std::none_of(prefixes.begin(), prefixes.end(),
                        [&](const std::string& prefix) { return name.starts_with(prefix); });
  });
  return files;
}

std::string KernelChoicesJson() {
  OrderedJson json = {{"libraries", OrderedJson::array()}, {"choices", OrderedJson::array()}};
  for (const std::string& file : LoadedLibraries({"libcublas", "libcuda", "libcudnn", "libnccl"})) {
    json["libraries"].push_back(file);
  }
  for (const KernelChoice& c : KernelChoices()) {
    json["choices"].push_back(
        {{"op", c.op}, {"problem", c.problem}, {"kernel", c.kernel}, {"why_slow", c.why_slow}});
  }
  return json.dump(1) + "\n";
}

}  // namespace lockstep
