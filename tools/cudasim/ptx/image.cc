#include "tools/cudasim/ptx/image.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace cudasim {
namespace ptx {
namespace {

uint64_t RoundUp(uint64_t bytes, uint64_t to) { return (bytes + to - 1) / to * to; }

// "K<float>" of "void K<float>(float*, int)", mangled.
std::string Demangle(std::string_view name) {
  int status = 0;
  char* const text = abi::__cxa_demangle(std::string(name).c_str(), nullptr, nullptr, &status);
  if (status != 0) return std::string(name);
  std::string result = text;
  std::free(text);
  int depth = 0;
  for (size_t i = result.size(); i-- > 0 && result.back() == ')';) {
    depth += result[i] == ')' ? 1 : result[i] == '(' ? -1 : 0;
    if (depth == 0) result.resize(i);
  }
  if (result.rfind("void ", 0) == 0) result.erase(0, 5);
  return result;
}

}  // namespace

Image::Image(std::string ptx, const Allocate& allocate) : module_(ParseModule(std::move(ptx))) {
  PlaceVariables(allocate);
  for (const Variable& variable : module_->variables) Initialize(variable);
}

void Image::PlaceVariables(const Allocate& allocate) {
  uint64_t bytes = 0, shared = 0;
  std::vector<uint64_t> offsets;
  for (const Variable& variable : module_->variables) {
    const bool is_shared = variable.space == Space::kShared;
    uint64_t& end = is_shared ? shared : bytes;
    // Beyond PTX's own alignment, as a GPU's loader does.
    end = RoundUp(end, std::max<uint64_t>(variable.alignment, is_shared ? 1 : 256));
    offsets.push_back(end);
    end += variable.bytes;
  }
  shared_bytes_ = static_cast<uint32_t>(shared);
  std::byte* data = nullptr;
  if (bytes > 0 && allocate != nullptr) {
    data = allocate(bytes);
  } else if (bytes > 0) {
    own_memory_.push_back(std::make_unique<std::byte[]>(bytes + 256));
    data = own_memory_.back().get();
    data += 256 - reinterpret_cast<uintptr_t>(data) % 256;
  }
  for (size_t j = 0; j < offsets.size(); ++j) {
    const Variable& variable = module_->variables[j];
    if (variable.space == Space::kShared) {
      symbols_[variable.name] = {Space::kShared, offsets[j], variable.bytes == 0};
    } else {
      std::byte* const at = data + offsets[j];
      memory_[variable.name] = {at, variable.bytes};
      symbols_[variable.name] = {variable.space, reinterpret_cast<uintptr_t>(at)};
    }
  }
}

void Image::Initialize(const Variable& variable) {
  if (variable.space == Space::kShared || variable.bytes == 0) return;
  std::byte* const at = memory_.at(variable.name).data;
  std::memset(at, 0, variable.bytes);
  std::memcpy(at, variable.initial.data(), variable.initial.size());
  for (const Variable::Pointer& pointer : variable.pointers) {
    const Symbol target = Resolve(pointer.target);
    const uint64_t value = target.value + pointer.offset;
    std::memcpy(at + pointer.at, &value, sizeof(value));
  }
}

Image::Memory Image::FindVariable(std::string_view name) const {
  const auto found = memory_.find(name);
  return found != memory_.end() ? found->second : Memory{};
}

Image::Symbol Image::Resolve(std::string_view name) {
  if (const auto found = symbols_.find(name); found != symbols_.end()) return found->second;
  const Program* const function = FindFunction(name);
  if (function == nullptr) {
    throw std::out_of_range("'" + std::string(name) + "' is not defined");
  }
  return {Space::kGeneric, reinterpret_cast<uintptr_t>(function), false, function};
}

const Program* Image::FindFunction(std::string_view name) {
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  const auto function = module_->functions.find(name);
  if (function == module_->functions.end() || function->second.external) return nullptr;
  std::unique_ptr<Program>& program = programs_[function->first];
  if (program != nullptr) return program.get();
  program = std::make_unique<Program>();
  program->name = Demangle(name);
  program->module = module_.get();
  program->function = &function->second;
  try {
    Decode(this, program.get());
  } catch (...) {
    programs_.erase(function->first);
    throw;
  }
  return program.get();
}

const Program* Image::FindKernel(std::string_view name) {
  const auto function = module_->functions.find(name);
  if (function == module_->functions.end() || !function->second.entry) return nullptr;
  return FindFunction(name);
}

}  // namespace ptx
}  // namespace cudasim
