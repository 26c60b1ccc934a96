// The memory of blocks: its allocation, guard pages, and protection against the host.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <utility>

#include "block.h"
#include "cudasim/access.h"
#include "cudasim/settings.h"
#include "state.h"

#if defined(__SANITIZE_ADDRESS__)
#define CUDASIM_ASAN 1
#else
#define CUDASIM_ASAN 0
#endif

namespace cudasim {
namespace runtime {
namespace {

// AddressSanitizer guards blocks itself; some of the following is then unused.

constexpr size_t kPage = 4096;
constexpr unsigned char kFresh = 0xFF;  // NaN in f64, f32, f16, bf16 and both f8.
// Freed addresses stay unusable until this many more blocks have been freed.
constexpr size_t kQuarantine = 4096;

[[maybe_unused]] size_t RoundUp(size_t size, size_t unit) {
  return (size + unit - 1) / unit * unit;
}

constexpr int kMostDevices = 8;

// Protection keys: access rights to pages, which each thread can switch for itself without a system
// call. There is one key per device, and a fallback for processors without keys.
struct Protection {
  Protection() {
    const Settings& settings = GetSettings();
    enabled = settings.protect && !CUDASIM_ASAN;
    devices = settings.devices;
    for (int device = 0; enabled && device < devices; ++device) {
      keys[device] = pkey_alloc(0, PKEY_DISABLE_ACCESS);
      if (keys[device] < 0) has_keys = false;
    }
  }

  bool enabled = false;
  bool has_keys = true;
  int devices = 0;
  int keys[kMostDevices] = {};
  // Without keys: how many threads currently have access to each device, and what to protect while
  // none has. This lock is taken after the state's.
  struct Range {
    size_t size;
    int device;
  };
  std::mutex mutex;
  int holders[kMostDevices] = {};
  std::map<uintptr_t, Range> ranges;
};

Protection& GetProtection() {
  static auto* protection = new Protection;
  return *protection;
}

[[maybe_unused]] bool IsProtected(const Block& block) {
  return block.kind == BlockKind::kDevice && GetProtection().enabled;
}

// Without keys: counts one thread more, or fewer, with access to each of `devices`, one bit each.
// The first one opens a device's memory to everyone, the last one closes it.
void CountHolders(Protection& protection, unsigned devices, int change) {
  const std::lock_guard<std::mutex> guard(protection.mutex);
  unsigned turned = 0;
  for (int i = 0; i < kMostDevices; ++i) {
    if (((devices >> i) & 1) == 0) continue;
    const int before = std::exchange(protection.holders[i], protection.holders[i] + change);
    if (before == 0 || before + change == 0) turned |= 1u << i;
  }
  const int rights = change > 0 ? PROT_READ | PROT_WRITE : PROT_NONE;
  for (const auto& [begin, range] : protection.ranges) {
    if (((turned >> range.device) & 1) == 0) continue;
    mprotect(reinterpret_cast<void*>(begin), range.size, rights);
  }
}

// The pattern between a block and its guard pages. In every floating type of 16 bits and more it is
// NaN, so that the use of a number beyond a block shows even in a maximum, which would hide a large
// negative one; as an index it is far out of range. It differs between blocks: otherwise a kernel
// that copies beyond the ends of two blocks would write what is already there.
class Canary {
 public:
  explicit Canary(const Block& block)
      : even_(static_cast<unsigned char>(0x81 + block.mapping / kPage % 126)),
        odd_(block.mapping / kPage % 2 == 0 ? 0x7F : 0xFF) {}

  // What belongs at the address.
  unsigned char At(const unsigned char* address) const {
    return reinterpret_cast<uintptr_t>(address) % 2 == 0 ? even_ : odd_;
  }
  void Fill(unsigned char* begin, size_t size) const {
    for (size_t i = 0; i < size; ++i) begin[i] = At(begin + i);
  }
  bool Holds(const unsigned char* begin, size_t size) const {
    for (size_t i = 0; i < std::min<size_t>(size, 2); ++i) {
      if (begin[i] != At(begin + i)) return false;
    }
    return size <= 2 || std::memcmp(begin, begin + 2, size - 2) == 0;
  }

 private:
  const unsigned char even_, odd_;
};

// Describes the bytes around a block that no longer hold the canary, from the first to the last;
// empty if all do. Those after the block come first.
[[maybe_unused]] std::string Damage(const Block& block) {
  const Canary canary(block);
  const auto* const begin = reinterpret_cast<const unsigned char*>(block.begin);
  const auto* const end = begin + block.size;
  const size_t before = block.begin - (block.mapping + kPage);
  const size_t after = block.mapping + block.mapping_size - kPage - block.end();
  // The first and the last wrong byte of [from, to), which has one.
  const auto bounds = [&](const unsigned char* from, const unsigned char* to) {
    while (*from == canary.At(from)) ++from;
    while (*(to - 1) == canary.At(to - 1)) --to;
    return std::pair(from, to - 1);
  };
  const auto text = [](ptrdiff_t from, ptrdiff_t to, const char* where) {
    return "bytes " + std::to_string(from) + " to " + std::to_string(to) + " " + where;
  };
  if (!canary.Holds(end, after)) {
    const auto [first, last] = bounds(end, end + after);
    return text(first - end, last - end, "after it");
  }
  if (!canary.Holds(begin - before, before)) {
    const auto [first, last] = bounds(begin - before, begin);
    return text(begin - last, begin - first, "before it");
  }
  return {};
}

// This thread's access rights, two bits per device: 0 all, 1 none.
constexpr unsigned kNoRights = 0x5555;
constinit thread_local unsigned thread_rights = kNoRights;

// A freed block's mapping.
struct Freed {
  uintptr_t begin;
  void* mapping;
  size_t size;
};

// Freed blocks, oldest first, whose addresses are not reused yet.
[[maybe_unused]] std::deque<Freed>& GetQuarantine() {
  static auto* const quarantine = new std::deque<Freed>;
  return *quarantine;
}

}  // namespace

bool MapBlock(Block* block) {
#if CUDASIM_ASAN
  // Whatever CUDASIM_ALIGNMENT says: this sanitizer knows the end of a block to the byte.
  const size_t alignment = block->kind == BlockKind::kDevice ? Settings().alignment : kPage;
  void* memory = nullptr;
  if (posix_memalign(&memory, alignment, block->size == 0 ? 1 : block->size) != 0) return false;
  std::memset(memory, kFresh, block->size);
  block->begin = reinterpret_cast<uintptr_t>(memory);
  return true;
#else
  // Guard page, canary, block, fewer bytes of canary than the alignment, guard page. Pinned memory
  // begins at a page, as on a real system.
  const bool at_end = block->kind == BlockKind::kDevice;
  const size_t rounded = RoundUp(block->size, GetSettings().alignment);
  const size_t inner = RoundUp(rounded, kPage);
  block->mapping_size = inner + 2 * kPage;
  void* const memory = mmap(nullptr, block->mapping_size, PROT_NONE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return false;
  block->mapping = reinterpret_cast<uintptr_t>(memory);
  auto* const first = static_cast<unsigned char*>(memory) + kPage;
  if (mprotect(first, inner, PROT_READ | PROT_WRITE) != 0) {
    munmap(memory, block->mapping_size);
    return false;
  }
  const size_t lead = at_end ? inner - rounded : 0;
  const Canary canary(*block);
  canary.Fill(first, lead);
  std::memset(first + lead, kFresh, block->size);
  canary.Fill(first + lead + block->size, inner - lead - block->size);
  block->begin = reinterpret_cast<uintptr_t>(first) + lead;
  Protection& protection = GetProtection();
  if (IsProtected(*block)) {
    if (protection.has_keys) {
      pkey_mprotect(first, inner, PROT_READ | PROT_WRITE, protection.keys[block->device]);
    } else {
      const std::lock_guard<std::mutex> guard(protection.mutex);
      protection.ranges[reinterpret_cast<uintptr_t>(first)] = {inner, block->device};
      if (protection.holders[block->device] == 0) mprotect(first, inner, PROT_NONE);
    }
  }
  return true;
#endif
}

std::string UnmapBlock(Block* block) {
#if CUDASIM_ASAN
  std::free(reinterpret_cast<void*>(block->begin));
  return {};
#else
  std::string damage;
  {
    const DeviceAccess access(DeviceAccess::kAllDevices);
    damage = Damage(*block);
  }
  {
    Protection& protection = GetProtection();
    const std::lock_guard<std::mutex> guard(protection.mutex);
    protection.ranges.erase(block->mapping + kPage);
  }
  // The addresses stay reserved, so that a later use faults instead of hitting a newer block.
  void* const memory = reinterpret_cast<void*>(block->mapping);
  mmap(memory, block->mapping_size, PROT_NONE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  std::deque<Freed>& quarantine = GetQuarantine();
  quarantine.push_back({block->begin, memory, block->mapping_size});
  if (quarantine.size() > kQuarantine) {
    ForgetFreed(quarantine.front().begin);
    munmap(quarantine.front().mapping, quarantine.front().size);
    quarantine.pop_front();
  }
  return damage;
#endif
}

void RestoreAccess() {
  const Protection& protection = GetProtection();
  if (!protection.enabled || !protection.has_keys) return;
  for (int i = 0; i < protection.devices; ++i) {
    pkey_set(protection.keys[i], (thread_rights >> (2 * i)) & 3);
  }
}

}  // namespace runtime

DeviceAccess::DeviceAccess(int device) : saved_rights_(runtime::thread_rights) {
  auto& protection = runtime::GetProtection();
  if (!protection.enabled) return;
  if (device != kAllDevices) {
    devices_ = (1u << device) | runtime::GetState().devices[device].peers.load();
  }
  if (!protection.has_keys) {
    runtime::CountHolders(protection, devices_, 1);
    return;
  }
  unsigned rights = 0;
  for (int i = 0; i < runtime::kMostDevices; ++i) {
    if (((devices_ >> i) & 1) == 0) rights |= static_cast<unsigned>(PKEY_DISABLE_ACCESS) << (2 * i);
  }
  runtime::thread_rights = rights;
  runtime::RestoreAccess();
}

DeviceAccess::~DeviceAccess() {
  auto& protection = runtime::GetProtection();
  if (!protection.enabled) return;
  if (!protection.has_keys) {
    runtime::CountHolders(protection, devices_, -1);
    return;
  }
  runtime::thread_rights = saved_rights_;
  runtime::RestoreAccess();
}

}  // namespace cudasim
