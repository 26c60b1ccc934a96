// Texts of reports.
#ifndef CUDASIM_DEVICE_REPORT_H_
#define CUDASIM_DEVICE_REPORT_H_

#include <sstream>
#include <string>

#include "cudasim/launch.h"
#include "cudasim/thread.h"

namespace cudasim {

// Text() << "thread " << 3: a string.
class Text {
 public:
  template <typename T>
  Text& operator<<(const T& value) {
    if constexpr (std::is_same_v<T, Where>) {
      out_ << value.file_name() << ":" << value.line() << ":" << value.column();
    } else if constexpr (std::is_same_v<T, uint3> || std::is_same_v<T, dim3>) {
      out_ << "(" << value.x << "," << value.y << "," << value.z << ")";
    } else {
      out_ << value;
    }
    return *this;
  }
  operator std::string() const { return out_.str(); }  // NOLINT: implicit

 private:
  std::ostringstream out_;
};

// The demangled name of the function that begins at (or, with `within`, contains) the address;
// empty if the program has no symbols.
std::string SymbolAt(const void* address, bool within);

// The source line of the call with return address `code`, by addr2line:
// "kernels/softmax/softmax_cuda.cu:42", followed by its callers if it is inlined. Without line
// information, the function's name.
std::string SourceAt(const void* code);

}  // namespace cudasim

#endif  // CUDASIM_DEVICE_REPORT_H_
