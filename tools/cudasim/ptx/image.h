// A module on a device: its variables have memory, its functions become programs when they are
// first asked for.
#ifndef CUDASIM_PTX_IMAGE_H_
#define CUDASIM_PTX_IMAGE_H_

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "tools/cudasim/ptx/program.h"
#include "tools/cudasim/ptx/text/module.h"

namespace cudasim {
namespace ptx {

class Image {
 public:
  // Device memory for the variables; it must stay valid as long as kernels run.
  using Allocate = std::function<std::byte*(size_t bytes)>;
  // Throws Unsupported.
  explicit Image(std::string ptx, const Allocate& allocate = nullptr);
  Image(const Image&) = delete;
  Image& operator=(const Image&) = delete;

  const Module& module() const { return *module_; }
  // A kernel, decoded. Null if there is no such kernel. Throws Unsupported if it has instructions
  // that the machine does not have. Any thread may call it.
  const Program* FindKernel(std::string_view name);

  // A .global or .const variable's memory; null if there is none of this name.
  struct Memory {
    std::byte* data = nullptr;
    uint64_t bytes = 0;
  };
  Memory FindVariable(std::string_view name) const;

  // What a name means outside of functions.
  struct Symbol {
    Space space;
    uint64_t value;  // an address in the space
    bool dynamic_shared = false;
    const Program* function = nullptr;
  };
  // For decoding, under the lock that FindKernel takes. Throws std::out_of_range.
  Symbol Resolve(std::string_view name);
  const Program* FindFunction(std::string_view name);
  uint32_t shared_bytes() const { return shared_bytes_; }

 private:
  void PlaceVariables(const Allocate& allocate);
  void Initialize(const Variable& variable);

  std::unique_ptr<Module> module_;
  std::recursive_mutex mutex_;
  std::map<std::string_view, std::unique_ptr<Program>> programs_;
  std::map<std::string_view, Memory> memory_;
  std::map<std::string_view, Symbol> symbols_;
  std::vector<std::unique_ptr<std::byte[]>> own_memory_;
  uint32_t shared_bytes_ = 0;  // of the module's shared variables, which lie before kernels' own
};

// Fills in a program from its function. Throws Unsupported.
void Decode(Image* image, Program* program);

}  // namespace ptx
}  // namespace cudasim

#endif  // CUDASIM_PTX_IMAGE_H_
