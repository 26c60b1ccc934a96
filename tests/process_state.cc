#include "tests/process_state.h"

#include <malloc.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace lockstep::test {

std::ostream& operator<<(std::ostream& out, const ProcessState& s) {
  return out << (s.resident_bytes >> 10) << " KiB resident, " << s.descriptors << " descriptors, "
             << s.threads << " threads";
}

ProcessState ProcessStateOf(pid_t pid) {
  const std::filesystem::path folder =
      "/proc/" + (pid == 0 ? std::string("self") : std::to_string(pid));
  ProcessState state;
  std::ifstream status(folder / "status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) state.resident_bytes = std::stoll(line.substr(6)) * 1024;
    if (line.starts_with("Threads:")) state.threads = std::stoll(line.substr(8));
  }
  std::error_code ended;
  for (std::filesystem::directory_iterator fd(folder / "fd", ended), end; !ended && fd != end;
       fd.increment(ended)) {
    ++state.descriptors;
  }
  std::ifstream stat(folder / "stat");
  std::string text;
  std::getline(stat, text);
  // Parse after the name, which may contain anything: the state is word 3 of the line, utime 14,
  // stime 15.
  if (const size_t name_end = text.rfind(')'); name_end != std::string::npos) {
    size_t at = name_end + 2;
    for (int word = 3; word < 14 && at != std::string::npos; ++word) at = text.find(' ', at) + 1;
    size_t used = 0;
    const int64_t user = std::stoll(text.substr(at), &used);
    const int64_t system = std::stoll(text.substr(at + used));
    state.cpu_seconds =
        static_cast<double>(user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
  }
  return state;
}

int64_t ResidentBytes() {
  malloc_trim(0);
  return ProcessStateOf().resident_bytes;
}

}  // namespace lockstep::test
