// A library that is loaded on first use: nothing is linked, and programs run where it is not
// installed.
#pragma once

#include <string>
#include <vector>

namespace lockstep {

// Never unloaded: its functions, and the objects they made, may outlive this object.
class SharedLibrary {
 public:
  struct Wanted {
    std::string name;                // for errors: "cuDNN"
    std::vector<std::string> files;  // the first that loads is used: "libcudnn.so.9"
    std::string install;             // for errors: "libcudnn9 9.10.2 or newer"
  };

  // If no file loads, throws Error with the dynamic linker's reason for each and what to install.
  explicit SharedLibrary(Wanted wanted);

  // Sets *function to the library's function `name`. If there is none, throws Error naming both.
  template <class Function>
  void Find(const char* name, Function** function) const {
    *function = reinterpret_cast<Function*>(Address(name));
  }
  // For functions of newer versions: null if there is none.
  template <class Function>
  void FindIfThere(const char* name, Function** function) const {
    *function = reinterpret_cast<Function*>(AddressIfThere(name));
  }

 private:
  void* Address(const char* name) const;
  void* AddressIfThere(const char* name) const;

  std::string file_, install_;
  void* handle_ = nullptr;
};

}  // namespace lockstep
