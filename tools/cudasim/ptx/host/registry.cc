#include "tools/cudasim/ptx/host/registry.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "cudasim/access.h"
#include "cudasim/settings.h"
#include "tools/cudasim/ptx/collectives.h"
#include "tools/cudasim/ptx/fatbin.h"
#include "tools/cudasim/runtime/memory.h"

namespace cudasim {
namespace ptx {
namespace {

// Device memory that lives as long as the process.
std::byte* AllocateOn(int device, size_t bytes) {
  runtime::State& state = runtime::GetState();
  const runtime::Lock lock(state.mutex);
  const auto block = runtime::Allocate(lock, runtime::BlockKind::kDevice, device, bytes);
  if (block == nullptr) throw std::bad_alloc();
  block->permanent = true;
  return reinterpret_cast<std::byte*>(block->begin);
}

}  // namespace

bool IsSet(const char* variable) {
  const char* const value = std::getenv(variable);
  if (value == nullptr || *value == '\0' || std::strcmp(value, "0") == 0) return false;
  if (std::strcmp(value, "1") != 0) {
    std::fprintf(stderr, "cudasim: %s=%s; it must be 1 or 0\n", variable, value);
    std::_Exit(2);
  }
  return true;
}

Registry& Registry::Get() {
  static auto* const registry = new Registry;
  return *registry;
}

Binary* Registry::AddBinary(const void* fatbin) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto binary = std::make_unique<Binary>();
  binary->fatbin = fatbin;
  Binary* const key = binary.get();
  binaries_[key] = std::move(binary);
  return key;
}

void Registry::RemoveBinary(Binary* binary) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::erase_if(kernels_, [&](const auto& entry) { return entry.second.binary == binary; });
  std::erase_if(variables_, [&](const auto& entry) { return entry.second.binary == binary; });
  // Kernels may still run: the images stay.
}

void Registry::AddKernel(const void* stub, Binary* binary, const char* name) {
  const std::lock_guard<std::mutex> lock(mutex_);
  kernels_[stub] = {binary, name, {}};
}

void Registry::AddVariable(const void* host, Binary* binary, const char* name) {
  const std::lock_guard<std::mutex> lock(mutex_);
  variables_[host] = {binary, name, {}};
}

Image& Registry::ImageOn(Binary* binary, int device) {
  std::unique_ptr<Image>& image = binary->images[device];
  if (image == nullptr) {
    const DeviceAccess access(device);
    if (IsSet("CUDASIM_EXACT_MMA")) {
      const bool ampere = runtime::GetSettings().capability < 90;
      matrix_sums = ampere ? MatrixSums::kAmpere : MatrixSums::kHopper;
    }
    image = std::make_unique<Image>(ReadFatbin(binary->fatbin, runtime::GetSettings().capability),
                                    [device](size_t bytes) { return AllocateOn(device, bytes); });
  }
  return *image;
}

const Program* Registry::FindKernel(const void* stub, int device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = kernels_.find(stub);
  if (found == kernels_.end()) return nullptr;
  Named& kernel = found->second;
  const Program*& program = kernel.programs[device];
  if (program == nullptr) program = ImageOn(kernel.binary, device).FindKernel(kernel.name);
  return program;
}

Image::Memory Registry::FindVariable(const void* host, int device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = variables_.find(host);
  if (found == variables_.end()) return {};
  return ImageOn(found->second.binary, device).FindVariable(found->second.name);
}

}  // namespace ptx
}  // namespace cudasim
