#include "tools/cudasim/loader/nvtx.h"

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace cudasim {
namespace {

// NVTX's modules from 1 on, and how many functions each has, counting an unused first one. A
// profiler may fill all of them; this program calls two.
constexpr unsigned kFunctions[] = {0, 16, 9, 15, 7, 16, 7};
constexpr unsigned kModules = 7, kMostFunctions = 16;
constexpr unsigned kCore = 1, kRangePushA = 9, kRangePop = 11, kVersion = 3;
constexpr int kNoPushPopTracking = -2;

using AnyFunction = void (*)();
AnyFunction functions[kModules][kMostFunctions];
AnyFunction* tables[kModules][kMostFunctions + 1];  // of their places, with a null at the end

int GetTable(int module, AnyFunction*** table, unsigned* size) {
  if (module <= 0 || module >= static_cast<int>(kModules)) return 0;
  if (size != nullptr) *size = kFunctions[module];
  if (table != nullptr) *table = tables[module];
  return 1;
}

struct Callbacks {
  size_t bytes;
  int (*get_table)(int module, AnyFunction*** table, unsigned* size);
};
struct Version {
  size_t bytes;
  uint32_t version, reserved;
  void (*set_profilers)(uint32_t);
};

const void* GetExports(uint32_t id) {
  static const Callbacks callbacks{sizeof(callbacks), GetTable};
  static const Version version{sizeof(version), kVersion, 0, [](uint32_t) {}};
  return id == 1 ? static_cast<const void*>(&callbacks) : id == 3 ? &version : nullptr;
}

bool LoadProfiler() {
  const char* const path = std::getenv("NVTX_INJECTION64_PATH");
  if (path == nullptr || *path == '\0') return false;
  void* const library = dlopen(path, RTLD_LAZY);
  if (library == nullptr) return false;
  for (unsigned m = 1; m < kModules; ++m) {
    for (unsigned f = 1; f < kFunctions[m]; ++f) tables[m][f] = &functions[m][f];
  }
  using Initialize = int(const void* (*)(uint32_t));
  auto* const initialize =
      reinterpret_cast<Initialize*>(dlsym(library, "InitializeInjectionNvtx2"));
  return initialize != nullptr && initialize(GetExports) != 0;
}

// Null if no profiler wants it.
AnyFunction Find(unsigned function) {
  static const bool loaded = LoadProfiler();
  return loaded ? functions[kCore][function] : nullptr;
}

}  // namespace

int PushNvtxRange(const char* message) {
  const AnyFunction push = Find(kRangePushA);
  return push == nullptr ? kNoPushPopTracking
                         : reinterpret_cast<int (*)(const char*)>(push)(message);
}

int PopNvtxRange() {
  const AnyFunction pop = Find(kRangePop);
  return pop == nullptr ? kNoPushPopTracking : reinterpret_cast<int (*)()>(pop)();
}

}  // namespace cudasim
