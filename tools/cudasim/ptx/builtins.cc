// Functions that device code finds everywhere.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tools/cudasim/ptx/addresses.h"
#include "tools/cudasim/ptx/control.h"

namespace cudasim {
namespace ptx {
namespace {

// One lane's view of a call.
class Arguments {
 public:
  Arguments(Warp& warp, const Instruction* i, int lane)
      : warp_(warp), i_(i), call_(*static_cast<const Call*>(i->data)), lane_(lane) {}

  template <typename T>
  T Get(size_t index) const {
    T value;
    std::memcpy(&value, Frame() + call_.arguments.at(index).caller, sizeof(T));
    return value;
  }
  template <typename T>
  void SetResult(T value) const {
    if (!call_.results.empty()) {
      std::memcpy(Frame() + call_.results[0].caller, &value, sizeof(T));
    }
  }
  // Where the bytes at a generic address lie.
  const std::byte* Resolve(uint64_t address, uint32_t bytes) const {
    uint64_t at[kLanes];
    for (uint64_t& each : at) each = address;
    ResolveGeneric(warp_, i_, at, bytes);
    return reinterpret_cast<const std::byte*>(at[lane_]);
  }
  std::string String(uint64_t address) const {
    std::string text;
    for (;; ++address) {
      const char c = static_cast<char>(*Resolve(address, 1));
      if (c == '\0') return text;
      text += c;
    }
  }

 private:
  std::byte* Frame() const {
    return warp_.local_memory + static_cast<size_t>(lane_) * warp_.local_stride + warp_.local;
  }

  Warp& warp_;
  const Instruction* i_;
  const Call& call_;
  int lane_;
};

// printf with arguments that lie one after the other, each aligned to its size.
std::string Format(const Arguments& arguments, const std::string& format, uint64_t values) {
  std::string out;
  uint64_t at = values;
  const auto next = [&](auto zero) {
    at = (at + sizeof(zero) - 1) / sizeof(zero) * sizeof(zero);
    std::memcpy(&zero, arguments.Resolve(at, sizeof(zero)), sizeof(zero));
    at += sizeof(zero);
    return zero;
  };
  const auto print = [&](const std::string& conversion, auto value) {
    char text[512];
    std::snprintf(text, sizeof(text), conversion.c_str(), value);
    out += text;
  };
  for (size_t i = 0; i < format.size();) {
    if (format[i] != '%' || i + 1 == format.size()) {
      out += format[i++];
      continue;
    }
    std::string conversion = "%";
    for (++i; i < format.size() && std::strchr("-+ #0123456789.*hlLzjt", format[i]) != nullptr;
         ++i) {
      if (format[i] == '*') {
        conversion += std::to_string(next(int32_t{}));
      } else {
        conversion += format[i];
      }
    }
    const char kind = i < format.size() ? format[i++] : '%';
    conversion += kind;
    const bool is_long = conversion.find_first_of("lzjt") != std::string::npos;
    if (kind == '%') {
      out += '%';
    } else if (kind == 's') {
      const uint64_t text = next(uint64_t{});
      out += text == 0 ? "(null)" : arguments.String(text);
    } else if (std::strchr("aAeEfFgG", kind) != nullptr) {
      print(conversion, next(double{}));
    } else if (kind == 'p' || is_long) {
      print(conversion, next(int64_t{}));
    } else {
      print(conversion, next(int32_t{}));
    }
  }
  return out;
}

void Printf(Warp& warp, const Instruction* i) {
  for (int lane : LanesOf(warp.mask)) {
    const Arguments arguments(warp, i, lane);
    const std::string text =
        Format(arguments, arguments.String(arguments.Get<uint64_t>(0)), arguments.Get<uint64_t>(1));
    std::fputs(text.c_str(), stdout);
    arguments.SetResult(static_cast<int32_t>(text.size()));
  }
}

void AssertFail(Warp& warp, const Instruction* i) {
  const int lane = __builtin_ctz(warp.mask);
  const Arguments arguments(warp, i, lane);
  warp.Fail(Bug::kAssert, i, lane,
            arguments.String(arguments.Get<uint64_t>(1)) + ":" +
                std::to_string(arguments.Get<uint32_t>(2)) + ": " +
                arguments.String(arguments.Get<uint64_t>(3)) + ": " +
                arguments.String(arguments.Get<uint64_t>(0)));
}

void Malloc(Warp& warp, const Instruction* i) {
  for (int lane : LanesOf(warp.mask)) {
    const Arguments arguments(warp, i, lane);
    arguments.SetResult(reinterpret_cast<uint64_t>(std::malloc(arguments.Get<uint64_t>(0))));
  }
}

void Free(Warp& warp, const Instruction* i) {
  for (int lane : LanesOf(warp.mask)) {
    std::free(reinterpret_cast<void*>(Arguments(warp, i, lane).Get<uint64_t>(0)));
  }
}

}  // namespace

Builtin FindBuiltin(std::string_view name) {
  if (name == "vprintf") return &Printf;
  if (name == "__assertfail") return &AssertFail;
  if (name == "malloc") return &Malloc;
  if (name == "free") return &Free;
  return nullptr;
}

}  // namespace ptx
}  // namespace cudasim
