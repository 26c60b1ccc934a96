#include "dist/control/file_descriptor.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/error.h"

namespace lockstep::dist {

int64_t DescriptorLimit() {
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  return static_cast<int64_t>(limit.rlim_cur);
}

void RaiseDescriptorLimit() {
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

bool IsOutOfDescriptors(int code) { return code == EMFILE || code == ENFILE; }

std::string DescriptorHint(int64_t limit) {
  // A stranger that answers in the place of another rank may say any number.
  constexpr int64_t kMost = int64_t{1} << 40;
  return StrCat("a process may have ", limit,
                " descriptors open; raise the limit in the shell that ",
                "starts the ranks: ulimit -n ", 4 * std::clamp<int64_t>(limit, 1024, kMost));
}

std::string SystemErrorText(int code) {
  std::string text = std::strerror(code);
  if (code == EMFILE) text += "; " + DescriptorHint(DescriptorLimit());
  return text;
}

}  // namespace lockstep::dist
