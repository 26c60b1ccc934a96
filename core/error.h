// Errors that say what, where and how to fix it. Usable from .cu files: no fmt, no spdlog.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

namespace lockstep {

// Base of every error Lockstep throws. what() is a sentence for the user.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// An argument whose shape, dtype, device or value does not fit the operation.
class ArgumentError : public Error {
 public:
  using Error::Error;
};

// A file, option or data set that cannot be used. what() names the file and the position.
class InputError : public Error {
 public:
  using Error::Error;
};

// The operating system refused: disk full, no permission, a file that vanished.
class IoError : public Error {
 public:
  using Error::Error;
};

// An allocation that does not fit. what() gives the requested and live bytes, and the limit.
class OutOfMemoryError : public Error {
 public:
  using Error::Error;
};

// Concatenates anything that has operator<<.
template <class... Args>
std::string StrCat(const Args&... args) {
  std::ostringstream out;
  ((void)(out << args), ...);
  return std::move(out).str();
}

namespace internal {
[[noreturn]] void ThrowCheckFailure(const char* file, int line, const char* condition,
                                    const std::string& message);
}  // namespace internal

}  // namespace lockstep

// Throws ArgumentError in every build. The message says what was expected, what was given, and how
// to fix it:
//   LS_CHECK(x.ndim() == 2, "linear: x must be [M, K], got ", x.shape());
#define LS_CHECK(condition, ...)                                        \
  do {                                                                  \
    if (!(condition)) [[unlikely]]                                      \
      throw ::lockstep::ArgumentError(::lockstep::StrCat(__VA_ARGS__)); \
  } while (0)

// For broken invariants, which are bugs in Lockstep: the message names the source line as well.
#define LS_INVARIANT(condition, ...)                                            \
  do {                                                                          \
    if (!(condition)) [[unlikely]]                                              \
      ::lockstep::internal::ThrowCheckFailure(__FILE__, __LINE__, #condition,   \
                                              ::lockstep::StrCat(__VA_ARGS__)); \
  } while (0)
