#include "tools/cudasim/ptx/addresses.h"

#include <cstdio>

namespace cudasim {
namespace ptx {
namespace {

std::string Hexadecimal(uint64_t x) {
  char text[24];
  std::snprintf(text, sizeof(text), "%#llx", static_cast<unsigned long long>(x));
  return text;
}

const char* NameOf(Space space) {
  switch (space) {
    case Space::kShared:
      return "shared memory";
    case Space::kLocal:
      return "local memory";
    case Space::kParam:
      return "the parameters";
    default:
      return "global memory";
  }
}

[[noreturn]] void FailMisaligned(const Warp& warp, const Instruction* i, int lane, Space space,
                                 uint64_t at, uint32_t bytes) {
  warp.Fail(Bug::kMisaligned, i, lane,
            "an access of " + std::to_string(bytes) + " bytes at address " + Hexadecimal(at) +
                " of " + NameOf(space) + ", which is no multiple of " + std::to_string(bytes));
}

}  // namespace

void FailAccess(const Warp& warp, const Instruction* i, Space space, const uint64_t* at,
                uint32_t bytes, uint64_t limit) {
  for (int lane : LanesOf(warp.mask)) {
    if (at[lane] % bytes != 0) FailMisaligned(warp, i, lane, space, at[lane], bytes);
    if (at[lane] + bytes > limit || at[lane] > limit) {
      warp.Fail(Bug::kOutOfBounds, i, lane,
                "an access of " + std::to_string(bytes) + " bytes at address " +
                    Hexadecimal(at[lane]) + " of " + NameOf(space) + ", which has " +
                    std::to_string(limit) + " bytes");
    }
  }
  warp.Fail(Bug::kOutOfBounds, i, 0, std::string("an access beyond ") + NameOf(space));
}

void CheckGlobalLanes(Warp& warp, const Instruction* i, const uint64_t* at, uint32_t bytes) {
  const Settings& settings = warp.block->settings();
  Races* const races = warp.block->races();
  Extent& cached = races != nullptr ? races->CachedExtent(i) : warp.block->CachedExtent(i);
  for (int lane : LanesOf(warp.mask)) {
    if ((at[lane] & (bytes - 1)) != 0) {
      FailMisaligned(warp, i, lane, Space::kGlobal, at[lane], bytes);
    }
    if (cached.Contains(at[lane], bytes)) continue;
    // Half of the addresses are the kernel's.
    cached =
        settings.accessible ? settings.accessible(at[lane]) : Extent{1 << 16, uintptr_t{1} << 47};
    if (cached.Contains(at[lane], bytes)) continue;
    std::string text = "an access of " + std::to_string(bytes) + " bytes at address " +
                       Hexadecimal(at[lane]) + ", which is no global memory of this kernel";
    const std::string what = settings.describe ? settings.describe(at[lane]) : "";
    if (!what.empty()) text += "\n" + what;
    warp.Fail(Bug::kOutOfBounds, i, lane, text);
  }
  if (races != nullptr) races->CheckGlobal(warp, i, at, bytes);
}

void ResolveGeneric(Warp& warp, const Instruction* i, uint64_t* at, uint32_t bytes) {
  uint64_t any = 0;
  for (int k = 0; k < kLanes; ++k) any |= at[k];
  if ((any & kWindowMask) == 0) {
    CheckGlobal(warp, i, at, bytes);
    return;
  }
  const Block& block = *warp.block;
  const uint32_t mask = warp.mask;
  for (int lane : LanesOf(mask)) {
    warp.mask = uint32_t{1} << lane;
    const uint64_t offset = at[lane] & ~kWindowMask;
    uint64_t same[kLanes];
    for (uint64_t& other : same) other = offset;
    switch (at[lane] & kWindowMask) {
      case kSharedWindow:
        CheckOffsets(warp, i, Space::kShared, same, bytes, block.shared_bytes());
        at[lane] = reinterpret_cast<uintptr_t>(block.shared()) + offset;
        break;
      case kLocalWindow:
        CheckOffsets(warp, i, Space::kLocal, same, bytes, warp.local_stride);
        at[lane] = reinterpret_cast<uintptr_t>(warp.local_memory) +
                   static_cast<uintptr_t>(lane) * warp.local_stride + offset;
        break;
      case kParamWindow:
        CheckOffsets(warp, i, Space::kParam, same, bytes, block.parameter_bytes());
        at[lane] = reinterpret_cast<uintptr_t>(block.parameters()) + offset;
        break;
      default:  // of no window: the upper bits are part of the address
        for (uint64_t& other : same) other = at[lane];
        CheckGlobal(warp, i, same, bytes);
    }
  }
  warp.mask = mask;
  const uint64_t first = at[__builtin_ctz(warp.mask)];
  for (int k = 0; k < kLanes; ++k) {
    if ((warp.mask >> k & 1) == 0) at[k] = first;
  }
}

void ResolveAny(Warp& warp, const Instruction* i, uint32_t bytes, Addresses* addresses) {
  const bool wide = (i->option & 1) != 0;
  switch (static_cast<Space>(i->option >> 1)) {
    case Space::kShared:
      return wide ? Resolve<Space::kShared, uint64_t>(warp, i, bytes, addresses)
                  : Resolve<Space::kShared, uint32_t>(warp, i, bytes, addresses);
    case Space::kLocal:
      return Resolve<Space::kLocal, uint64_t>(warp, i, bytes, addresses);
    case Space::kParam:
      return Resolve<Space::kParam, uint64_t>(warp, i, bytes, addresses);
    case Space::kGeneric:
      return Resolve<Space::kGeneric, uint64_t>(warp, i, bytes, addresses);
    default:
      return Resolve<Space::kGlobal, uint64_t>(warp, i, bytes, addresses);
  }
}

}  // namespace ptx
}  // namespace cudasim
