// A library that is loaded when it is first used: nothing is linked, and programs run where it is
// not installed.
#pragma once

#include <string>
#include <vector>

namespace lockstep {

// Never unloaded: the functions found in it, and what they made, may outlive whoever asked for
// them.
class SharedLibrary {
 public:
  struct Wanted {
    std::string name;                // for errors: "cuDNN"
    std::vector<std::string> files;  // the first one that loads is taken: "libcudnn.so.9"
    std::string install;             // for errors, what to install: "libcudnn9 9.10.2 or newer"
  };

  // Throws Error, with the dynamic linker's reason for each file and what to install, where none
  // loads.
  explicit SharedLibrary(Wanted wanted);

  // Sets *function, a pointer to a function, to the one of this name. Throws Error that names both
  // where the library has none.
  template <class Function>
  void Find(const char* name, Function** function) const {
    *function = reinterpret_cast<Function*>(Address(name));
  }

 private:
  void* Address(const char* name) const;

  std::string file_, install_;
  void* handle_ = nullptr;
};

}  // namespace lockstep
