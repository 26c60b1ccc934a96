// The fat binaries, kernels and variables that objects made by nvcc announce when a program starts.
#ifndef CUDASIM_PTX_HOST_REGISTRY_H_
#define CUDASIM_PTX_HOST_REGISTRY_H_

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "tools/cudasim/ptx/image.h"

namespace cudasim {
namespace ptx {

// Whether the variable of the environment is 1. Ends the process if it is neither 0, 1 nor empty.
bool IsSet(const char* variable);

// One object's device code. Each device gets an image of its own at the first use.
struct Binary {
  const void* fatbin = nullptr;
  std::map<int, std::unique_ptr<Image>> images;  // by device
};

class Registry {
 public:
  static Registry& Get();  // never destroyed: objects announce themselves before main

  Binary* AddBinary(const void* fatbin);
  void RemoveBinary(Binary* binary);
  void AddKernel(const void* stub, Binary* binary, const char* name);
  void AddVariable(const void* host, Binary* binary, const char* name);

  // The kernel of a stub, on a device; null if no object has announced it. Throws Unsupported.
  const Program* FindKernel(const void* stub, int device);
  // A variable's memory on a device; null if no object has announced it. Throws Unsupported.
  Image::Memory FindVariable(const void* host, int device);

 private:
  struct Named {
    Binary* binary;
    std::string name;
    std::map<int, const Program*> programs;  // a kernel's, by device, once they were asked for
  };
  Image& ImageOn(Binary* binary, int device);

  std::mutex mutex_;
  std::map<Binary*, std::unique_ptr<Binary>> binaries_;
  std::unordered_map<const void*, Named> kernels_, variables_;  // by what the host calls them
};

}  // namespace ptx
}  // namespace cudasim

#endif  // CUDASIM_PTX_HOST_REGISTRY_H_
