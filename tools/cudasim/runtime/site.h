// Where in the program something was called: addresses now, source lines when a report is printed.
#ifndef CUDASIM_RUNTIME_SITE_H_
#define CUDASIM_RUNTIME_SITE_H_

#include <string>

namespace cudasim::runtime {

struct Site {
  static constexpr int kFrames = 12;
  void* frames[kFrames];
  int count = 0;
};

// The callers of the runtime function that calls this.
Site CaptureSite();

// One line per caller, " Function at file.cc:12". Runs addr2line unless a sanitizer can tell.
std::string Describe(const Site& site);

}  // namespace cudasim::runtime

#endif  // CUDASIM_RUNTIME_SITE_H_
