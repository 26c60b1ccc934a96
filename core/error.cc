#include "core/error.h"

#include <sstream>

namespace lockstep {

int ExitCodeOf(const std::exception& error) {
  return dynamic_cast<const InputError*>(&error) != nullptr ? 2 : 1;
}

namespace internal {

void PrintText(std::ostream& out, const void* characters) {
  out << static_cast<const char*>(characters);
}
void PrintAddress(std::ostream& out, const void* address) { out << address; }

template void Print<std::string>(std::ostream&, const void*);
template void Print<std::string_view>(std::ostream&, const void*);
template void Print<bool>(std::ostream&, const void*);
template void Print<char>(std::ostream&, const void*);
template void Print<unsigned char>(std::ostream&, const void*);
template void Print<short>(std::ostream&, const void*);
template void Print<unsigned short>(std::ostream&, const void*);
template void Print<int>(std::ostream&, const void*);
template void Print<unsigned>(std::ostream&, const void*);
template void Print<long>(std::ostream&, const void*);
template void Print<unsigned long>(std::ostream&, const void*);
template void Print<long long>(std::ostream&, const void*);
template void Print<unsigned long long>(std::ostream&, const void*);
template void Print<float>(std::ostream&, const void*);
template void Print<double>(std::ostream&, const void*);

std::string Concatenate(std::initializer_list<Printable> values) {
  std::ostringstream out;
  for (const Printable& x : values) x.print(out, x.value);
  return std::move(out).str();
}

void ThrowCheckFailure(const char* file, int line, const char* condition,
                       const std::string& message) {
  throw Error(StrCat("internal error at ", file, ":", line, ": ", condition, " does not hold",
                     message.empty() ? "" : ": ", message, ". This is a bug in Lockstep."));
}

}  // namespace internal
}  // namespace lockstep
