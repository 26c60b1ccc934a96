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

// Shapes, dtypes, devices or values of arguments that do not fit an operation.
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

// An allocation that does not fit. what() lists bytes asked, live and limit.
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

// Throws ArgumentError in every build. The message says what was expected, what came, and the fix:
//   LS_CHECK(x.ndim() == 2, "linear: x must be [M, K], got ", x.shape());
#define LS_CHECK(condition, ...)                                        \
  do {                                                                  \
    if (!(condition)) [[unlikely]]                                      \
      throw ::lockstep::ArgumentError(::lockstep::StrCat(__VA_ARGS__)); \
  } while (0)

// A broken invariant of ours, not of the user: names the source line as well.
#define LS_INVARIANT(condition, ...)                                            \
  do {                                                                          \
    if (!(condition)) [[unlikely]]                                              \
      ::lockstep::internal::ThrowCheckFailure(__FILE__, __LINE__, #condition,   \
                                              ::lockstep::StrCat(__VA_ARGS__)); \
  } while (0)
