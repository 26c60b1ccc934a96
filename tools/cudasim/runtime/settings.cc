#include "cudasim/settings.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <string>
#include <thread>

#include "cudasim/executor.h"

namespace cudasim::runtime {
namespace {

// Ends at once: what runs at exit asks for the settings that are being read.
[[noreturn]] void Refuse(const char* name, const char* value, const char* expected) {
  std::fprintf(stderr, "cudasim: %s=%s: expected %s\n", name, value, expected);
  std::fflush(nullptr);
  std::_Exit(2);
}

long long Number(const char* name, long long missing, long long low, long long high,
                 bool suffixes) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return missing;
  const std::string expected = "a number from " + std::to_string(low) + " to " +
                               std::to_string(high) + (suffixes ? ", with K, M or G" : "");
  char* end = nullptr;
  errno = 0;
  long long value = std::strtoll(text, &end, 10);
  if (end == text || errno != 0 || value < std::min(low, 0LL)) Refuse(name, text, expected.c_str());
  const char* const kSuffixes = "KMG";
  if (suffixes && *end != '\0') {
    const char* const suffix = std::strchr(kSuffixes, *end);
    if (suffix == nullptr) Refuse(name, text, expected.c_str());
    const auto shift = 10 * (suffix - kSuffixes + 1);
    if (value > (high >> shift)) Refuse(name, text, expected.c_str());
    value <<= shift;
    ++end;
  }
  if (*end != '\0' || value < low || value > high) Refuse(name, text, expected.c_str());
  return value;
}

// Which of the words it is; `missing` if it is not set.
int Choice(const char* name, std::initializer_list<std::string> words, int missing) {
  const char* const text = std::getenv(name);
  if (text == nullptr || *text == '\0') return missing;
  const auto found = std::find(words.begin(), words.end(), text);
  if (found != words.end()) return static_cast<int>(found - words.begin());
  std::string expected;
  for (const std::string& word : words) expected += (expected.empty() ? "" : " or ") + word;
  Refuse(name, text, expected.c_str());
}

// Whether access rights to pages cost no system call.
bool HasProtectionKeys() {
  const int key = pkey_alloc(0, 0);
  if (key >= 0) pkey_free(key);
  return key >= 0;
}

Settings FromEnvironment() {
  Settings settings;
  settings.devices = static_cast<int>(Number("CUDASIM_DEVICES", settings.devices, 0, 8, false));
  settings.startup_error = static_cast<int>(Number("CUDASIM_STARTUP_ERROR", 0, 0, 999, false));
  settings.memory = static_cast<size_t>(
      Number("CUDASIM_MEMORY", static_cast<long long>(settings.memory), 1 << 20, 1LL << 42, true));
  settings.capability = static_cast<int>(Number("CUDASIM_CAPABILITY", 90, 80, 120, false));
  const int known[] = {80, 86, 89, 90, 120};
  if (std::find(std::begin(known), std::end(known), settings.capability) == std::end(known)) {
    Refuse("CUDASIM_CAPABILITY", std::getenv("CUDASIM_CAPABILITY"), "80, 86, 89, 90 or 120");
  }
  settings.delay_ms = static_cast<int>(Number("CUDASIM_DELAY", 0, 0, 60000, false));
  settings.nccl_launch_us = static_cast<int>(Number("CUDASIM_NCCL_LAUNCH", 0, -1, 60000000, false));
  settings.ordering = Number("CUDASIM_ORDERING", 1, 0, 1, false) == 1;
  settings.protect = Number("CUDASIM_PROTECT", HasProtectionKeys(), 0, 1, false) == 1;
  settings.alignment =
      static_cast<size_t>(Number("CUDASIM_ALIGNMENT", static_cast<long long>(settings.alignment), 1,
                                 static_cast<long long>(settings.alignment), false));
  if (!std::has_single_bit(settings.alignment)) {
    Refuse("CUDASIM_ALIGNMENT", std::getenv("CUDASIM_ALIGNMENT"), "a power of two up to 256");
  }
  settings.leaks = static_cast<Leaks>(
      Choice("CUDASIM_LEAKS", {"off", "warn", "error"}, static_cast<int>(settings.leaks)));
  return settings;
}

ExecutorSettings ExecutorFromEnvironment() {
  ExecutorSettings settings;
  // "random:SEED" is the only choice with a number.
  const char* const order = std::getenv("CUDASIM_ORDER");
  if (order != nullptr && std::strncmp(order, "random:", 7) == 0) {
    char* end = nullptr;
    settings.order = Order::kRandom;
    settings.seed = std::strtoull(order + 7, &end, 10);
    if (order[7] < '0' || order[7] > '9' || *end != '\0') {
      Refuse("CUDASIM_ORDER", order, "forward, reverse, random or random:SEED");
    }
  } else {
    settings.order =
        static_cast<Order>(Choice("CUDASIM_ORDER", {"forward", "reverse", "random"}, 0));
  }
  const long long processors = std::clamp(std::thread::hardware_concurrency(), 1u, 16u);
  settings.threads = static_cast<int>(Number("CUDASIM_THREADS", processors, 1, 64, false));
  settings.abort_on_bug = Choice("CUDASIM_ON_BUG", {"abort", "error"}, 0) == 0;
  settings.report_exited = Choice("CUDASIM_EXITED", {"report", "allow"}, 0) == 0;
  settings.find_races = Number("CUDASIM_RACES", 0, 0, 1, false) == 1;
  return settings;
}

}  // namespace

Settings& GetSettings() {
  static Settings settings = FromEnvironment();
  return settings;
}

}  // namespace cudasim::runtime

namespace cudasim {

ExecutorSettings& GetExecutorSettings() {
  static ExecutorSettings settings = runtime::ExecutorFromEnvironment();
  return settings;
}

}  // namespace cudasim
