#include "core/system/shared_library.h"

#include <dlfcn.h>

#include <utility>

#include "core/error.h"

namespace lockstep {

SharedLibrary::SharedLibrary(Wanted wanted) : install_(std::move(wanted.install)) {
  std::string reasons;
  for (std::string& file : wanted.files) {
    handle_ = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ != nullptr) {
      file_ = std::move(file);
      return;
    }
    reasons += StrCat(reasons.empty() ? "" : "; ", dlerror());
  }
  throw Error(StrCat(wanted.name, " cannot be loaded (", reasons, "); install ", install_,
                     ", or add its folder to LD_LIBRARY_PATH"));
}

void* SharedLibrary::AddressIfThere(const char* name) const { return dlsym(handle_, name); }

void* SharedLibrary::Address(const char* name) const {
  void* const address = AddressIfThere(name);
  if (address == nullptr) {
    throw Error(StrCat(file_, " has no ", name, ": it is too old; install ", install_));
  }
  return address;
}

}  // namespace lockstep
