// Counts as tables.
#include <algorithm>
#include <cstdio>
#include <iterator>
#include <tuple>
#include <utility>
#include <vector>

#include "tools/cudasim/counters.h"

namespace cudasim {
namespace {

// "Kernel" of "a::(anonymous namespace)::Kernel<float, (b::C)0>".
std::string ShortName(const std::string& name) {
  const std::string plain = name.substr(0, name.find('<'));
  const size_t scope = plain.rfind("::");
  return scope == std::string::npos ? plain : plain.substr(scope + 2);
}

// "c/d.cuh:1, inlined at c/e.cu:2" of "/a/b/c/d.cuh:1, inlined at /a/b/c/e.cu:2".
std::string ShortPlace(const std::string& place) {
  const std::string between = ", inlined at ";
  std::string text;
  for (size_t begin = 0; begin < place.size();) {
    const size_t end = std::min(place.find(between, begin), place.size());
    const std::string path = place.substr(begin, end - begin);
    const size_t name = path.rfind('/');
    const size_t folder = name == std::string::npos || name == 0 ? name : path.rfind('/', name - 1);
    if (begin > 0) text += between;
    text += folder == std::string::npos ? path : path.substr(folder + 1);
    begin = end == place.size() ? end : end + between.size();
  }
  return text;
}

std::string Format(const char* format, auto... values) {
  char text[512];
  std::snprintf(text, sizeof(text), format, values...);
  return text;
}

std::string Number(uint64_t x) { return x == 0 ? "." : std::to_string(x); }

constexpr const char* kKinds[] = {"integer", "float",   "special",  "convert", "move",
                                  "control", "shuffle", "matrices", "global",  "shared"};
constexpr const char* kTraffic[] = {"sectors", "ideal", "excess", "cycles", "ideal", "excess"};

}  // namespace

std::string FormatCounts(const std::string& prefix, const CountsByKernel& counts) {
  std::string text;
  if (counts.empty()) {
    text = Format("%-48s %-28s %8s", prefix.c_str(), "kernel", "launches");
    for (const char* const name : kKinds) text += Format(" %8s", name);
    for (const char* const name : kTraffic) text += Format(" %8s", name);
    return text + "    local\n";
  }
  std::map<std::string, KernelCounts> kernels;
  for (const auto& [name, of] : counts) {
    KernelCounts& sum = kernels[ShortName(name)];
    sum.launches += of.launches;
    sum.total += of.total;
  }
  for (const auto& [name, of] : kernels) {
    text += Format("%-48s %-28s %8s", prefix.c_str(), name.c_str(), Number(of.launches).c_str());
    for (size_t k = 0; k < std::size(kKinds); ++k) {
      text += Format(" %8s", Number(of.total.instructions[k]).c_str());
    }
    for (const Traffic& t : {of.total.global, of.total.shared}) {
      text +=
          Format(" %8s %8s %8.2f", Number(t.moved).c_str(), Number(t.ideal).c_str(), t.excess());
    }
    text += Format(" %8s\n", Number(of.total.local_bytes).c_str());
  }
  return text;
}

std::string FormatExcess(const CountsByKernel& counts, double excess) {
  std::string text;
  for (const auto& [name, of] : counts) {
    std::vector<std::tuple<uint64_t, const char*, const Traffic*, const std::string*>> worst;
    for (const auto& [place, line] : of.lines) {
      for (const auto& [what, t] : {std::pair("sectors of global memory", &line.global),
                                    std::pair("cycles of shared memory", &line.shared)}) {
        if (t->excess() > excess) worst.emplace_back(t->moved - t->ideal, what, t, &place);
      }
    }
    std::sort(worst.rbegin(), worst.rend());
    for (size_t j = 0; j < std::min<size_t>(worst.size(), 3); ++j) {
      const auto& [more, what, t, place] = worst[j];
      text += ShortName(name) + ": " + std::to_string(t->moved) + " " + what + ", ideally " +
              std::to_string(t->ideal) + ", at " + ShortPlace(*place) + "\n";
    }
  }
  return text;
}

}  // namespace cudasim
