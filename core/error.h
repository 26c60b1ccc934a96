// Errors that say what, where and how to fix it. Usable from .cu files: no fmt.
#pragma once

#include <exception>
#include <initializer_list>
#include <iosfwd>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

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

// The exit code of a program that ends with this error: 2 for an InputError, which the user can
// mend by another command line or another file, otherwise 1.
int ExitCodeOf(const std::exception& error);

namespace internal {

// A value that has operator<<, with its type erased, so that every StrCat calls the same function.
struct Printable {
  const void* value;
  void (*print)(std::ostream& out, const void* value);
};

template <class T>
void Print(std::ostream& out, const void* value) {
  out << *static_cast<const T*>(value);
}
// For the types that std::ostream prints itself. They are in error.cc, as is <sstream>, which takes
// longer to compile than this whole header.
void PrintText(std::ostream& out, const void* characters);  // zero-terminated
void PrintAddress(std::ostream& out, const void* address);
extern template void Print<std::string>(std::ostream&, const void*);
extern template void Print<std::string_view>(std::ostream&, const void*);
extern template void Print<bool>(std::ostream&, const void*);
extern template void Print<char>(std::ostream&, const void*);
extern template void Print<unsigned char>(std::ostream&, const void*);
extern template void Print<short>(std::ostream&, const void*);
extern template void Print<unsigned short>(std::ostream&, const void*);
extern template void Print<int>(std::ostream&, const void*);
extern template void Print<unsigned>(std::ostream&, const void*);
extern template void Print<long>(std::ostream&, const void*);
extern template void Print<unsigned long>(std::ostream&, const void*);
extern template void Print<long long>(std::ostream&, const void*);
extern template void Print<unsigned long long>(std::ostream&, const void*);
extern template void Print<float>(std::ostream&, const void*);
extern template void Print<double>(std::ostream&, const void*);

template <class T>
Printable ToPrintable(const T& x) {
  using Value = std::decay_t<T>;
  if constexpr (std::is_same_v<Value, const char*> || std::is_same_v<Value, char*>) {
    return {x, PrintText};
  } else if constexpr (std::is_pointer_v<Value>) {
    return {x, PrintAddress};
  } else {
    return {&x, Print<T>};
  }
}

std::string Concatenate(std::initializer_list<Printable> values);

}  // namespace internal

// Concatenates anything that has operator<<.
template <class... Args>
std::string StrCat(const Args&... args) {
  return internal::Concatenate({internal::ToPrintable(args)...});
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
