#include "tools/cudasim/loader/kernels.h"

#include <dlfcn.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

namespace cudasim {
namespace {

// A runtime's functions, with which nvcc's objects announce what they contain.
struct Announcer {
  void** (*binary)(void*) = nullptr;
  void (*kernel)(void**, const char*, char*, const char*, int, void*, void*, void*, void*,
                 int*) = nullptr;
  void (*variable)(void**, char*, char*, const char*, int, size_t, int, int) = nullptr;
  void (*end)(void**) = nullptr;
};

// An object's device code, and what it said of it.
struct Binary {
  void* fatbin = nullptr;
  std::vector<std::function<void(const Announcer&, void**)>> contents;
  bool complete = false;
};

// Objects announce themselves before this file's variables are made.
struct Known {
  std::deque<Binary> binaries;  // whose addresses are the objects' handles
  Announcer announcer;          // of the chosen runtime
};
Known& GetKnown() {
  static Known& known = *new Known;
  return known;
}

void Announce(const Binary& binary, const Announcer& to) {
  void** const handle = to.binary(binary.fatbin);
  for (const auto& announce : binary.contents) announce(to, handle);
  to.end(handle);
}

template <class Function>
bool Find(void* library, const char* name, Function** function) {
  *function = reinterpret_cast<Function*>(dlsym(library, name));
  return *function != nullptr;
}

}  // namespace

const char* AnnounceKernels(void* library) {
  Known& known = GetKnown();
  Announcer to;
  const std::pair<const char*, bool> functions[] = {
      {"__cudaRegisterFatBinary", Find(library, "__cudaRegisterFatBinary", &to.binary)},
      {"__cudaRegisterFunction", Find(library, "__cudaRegisterFunction", &to.kernel)},
      {"__cudaRegisterVar", Find(library, "__cudaRegisterVar", &to.variable)},
      {"__cudaRegisterFatBinaryEnd", Find(library, "__cudaRegisterFatBinaryEnd", &to.end)}};
  for (const auto& [name, found] : functions) {
    if (!found) return known.binaries.empty() ? nullptr : name;
  }
  known.announcer = to;
  for (const Binary& binary : known.binaries) {
    if (binary.complete) Announce(binary, to);
  }
  return nullptr;
}

}  // namespace cudasim

// What nvcc's objects call, by NVIDIA's names. Weak, so that a program may link the simulator
// itself. NOLINTBEGIN
extern "C" {

[[gnu::weak]] void** __cudaRegisterFatBinary(void* fatbin) {
  return reinterpret_cast<void**>(
      &cudasim::GetKnown().binaries.emplace_back(cudasim::Binary{fatbin, {}, false}));
}

[[gnu::weak]] void __cudaRegisterFunction(void** handle, const char* stub, char* function,
                                          const char* name, int thread_limit, void* tid, void* bid,
                                          void* block, void* grid, int* warp_size) {
  reinterpret_cast<cudasim::Binary*>(handle)->contents.emplace_back(
      [=](const cudasim::Announcer& to, void** real) {
        to.kernel(real, stub, function, name, thread_limit, tid, bid, block, grid, warp_size);
      });
}

[[gnu::weak]] void __cudaRegisterVar(void** handle, char* host, char* device, const char* name,
                                     int external, size_t bytes, int constant, int global) {
  reinterpret_cast<cudasim::Binary*>(handle)->contents.emplace_back(
      [=](const cudasim::Announcer& to, void** real) {
        to.variable(real, host, device, name, external, bytes, constant, global);
      });
}

[[gnu::weak]] void __cudaRegisterFatBinaryEnd(void** handle) {
  auto* const binary = reinterpret_cast<cudasim::Binary*>(handle);
  binary->complete = true;
  const cudasim::Announcer& announcer = cudasim::GetKnown().announcer;
  if (announcer.binary != nullptr) cudasim::Announce(*binary, announcer);
}

// Objects call it when the program ends, and are never unloaded before. The runtime, which was
// loaded after them, has shut down by then.
[[gnu::weak]] void __cudaUnregisterFatBinary(void**) {}

}  // extern "C"
// NOLINTEND
