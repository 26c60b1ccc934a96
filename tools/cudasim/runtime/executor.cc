#include "cudasim/executor.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

namespace cudasim {
namespace {

// Ends at once: what runs at exit asks for the settings that are being read.
[[noreturn]] void Refuse(const char* name, const char* value, const char* accepted) {
  std::fprintf(stderr, "cudasim: %s=%s; it must be %s\n", name, value, accepted);
  std::fflush(nullptr);
  std::_Exit(2);
}

uint64_t Number(const char* name, const char* value, const char* digits, uint64_t least,
                uint64_t most, const char* accepted) {
  char* end = nullptr;
  const uint64_t number = std::strtoull(digits, &end, 10);
  if (end == digits || *end != '\0' || number < least || number > most) {
    Refuse(name, value, accepted);
  }
  return number;
}

bool Choice(const char* name, const char* yes, const char* no, bool otherwise) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return otherwise;
  if (std::strcmp(value, yes) == 0) return true;
  if (std::strcmp(value, no) == 0) return false;
  Refuse(name, value, (std::string(yes) + " or " + no).c_str());
}

ExecutorSettings FromEnvironment() {
  ExecutorSettings settings;
  if (const char* value = std::getenv("CUDASIM_ORDER"); value != nullptr && *value != '\0') {
    const char* accepted = "forward, reverse, random or random:SEED";
    const std::string text = value;
    if (text == "reverse") {
      settings.order = Order::kReverse;
    } else if (text.rfind("random", 0) == 0) {
      settings.order = Order::kRandom;
      if (text.size() > 6) {
        if (text[6] != ':') Refuse("CUDASIM_ORDER", value, accepted);
        settings.seed = Number("CUDASIM_ORDER", value, value + 7, 0, ~uint64_t{0}, accepted);
      }
    } else if (text != "forward") {
      Refuse("CUDASIM_ORDER", value, accepted);
    }
  }
  settings.threads = static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, 16u));
  if (const char* value = std::getenv("CUDASIM_THREADS"); value != nullptr && *value != '\0') {
    settings.threads = static_cast<int>(
        Number("CUDASIM_THREADS", value, value, 1, 64, "a number of threads, 1 to 64"));
  }
  settings.abort_on_bug = Choice("CUDASIM_ON_BUG", "abort", "error", true);
  settings.report_exited = Choice("CUDASIM_EXITED", "report", "allow", true);
  settings.find_races = Choice("CUDASIM_RACES", "1", "0", false);
  return settings;
}

}  // namespace

ExecutorSettings& GetExecutorSettings() {
  static ExecutorSettings settings = FromEnvironment();
  return settings;
}

}  // namespace cudasim
