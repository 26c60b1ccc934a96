#include "shared_memory.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cudasim/launch.h"
#include "report.h"
#include "sanitizers.h"

namespace cudasim {
namespace {

constexpr int kPoison = 0xff;  // NaN as f64, f32, f16, bf16 and f8
constexpr char kRedzoneByte = static_cast<char>(0xfb);

unsigned next_site = 0;

unsigned NumberOf(SharedSite* site) {
  unsigned number = __atomic_load_n(&site->number, __ATOMIC_RELAXED);
  if (number != 0) return number;
  const unsigned fresh = __atomic_add_fetch(&next_site, 1, __ATOMIC_RELAXED);
  // If two OS threads race, the first one wins.
  if (__atomic_compare_exchange_n(&site->number, &number, fresh, false, __ATOMIC_RELAXED,
                                  __ATOMIC_RELAXED)) {
    return fresh;
  }
  return number;
}

}  // namespace

SharedMemory::SharedMemory() {
  void* memory = mmap(nullptr, kArenaBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("cudasim: no memory for a block's shared memory");
    std::abort();
  }
  memory_ = static_cast<char*>(memory);
  PoisonMemory(memory_, kArenaBytes);
}

SharedMemory::~SharedMemory() {
  UnpoisonMemory(memory_, kArenaBytes);
  munmap(memory_, kArenaBytes);
}

void SharedMemory::BeginBlock(size_t dynamic_bytes) {
  ++block_;
  used_ = 0;
  static_bytes_ = 0;
  dynamic_bytes_ = dynamic_bytes;
  dynamic_ = nullptr;
  arrays_.clear();
}

char* SharedMemory::Allocate(size_t bytes, size_t alignment, const char* name, Where where) {
  const size_t begin = (used_ + kRedzone + alignment - 1) / alignment * alignment;
  const size_t end = begin + bytes + kRedzone;
  if (static_bytes_ > kMaxStaticShared) {
    Report(Bug::kOther, Text() << "the kernel declares more than " << kMaxStaticShared
                               << " bytes of static shared memory, which nvcc refuses, with "
                               << name << " at " << where);
  }
  if (static_bytes_ + dynamic_bytes_ > kMaxShared || end > kArenaBytes) {
    Report(Bug::kOther, Text() << "the block needs " << static_bytes_ << " bytes of static and "
                               << dynamic_bytes_ << " of dynamic shared memory; there are "
                               << kMaxShared);
  }
  char* data = memory_ + begin;
  if (HasAsan()) {
    UnpoisonMemory(data, bytes);
  } else {
    std::memset(memory_ + used_, kRedzoneByte, begin - used_);
    std::memset(data + bytes, kRedzoneByte, kRedzone);
  }
  std::memset(data, kPoison, bytes);
  // The next array's redzone begins at the end of this one's.
  used_ = end;
  arrays_.push_back({data, bytes, name, where});
  return data;
}

void* SharedMemory::Static(SharedSite* site) {
  const unsigned number = NumberOf(site);
  if (number >= slots_.size()) slots_.resize(number + 64);
  Slot& slot = slots_[number];
  if (slot.block != block_) {
    static_bytes_ += site->bytes;
    slot.data = Allocate(site->bytes, site->alignment, site->name, site->where);
    slot.block = block_;
  }
  return slot.data;
}

void* SharedMemory::Dynamic(size_t alignment, Where where) {
  if (dynamic_ == nullptr) {
    dynamic_ =
        Allocate(dynamic_bytes_, alignment < 128 ? 128 : alignment, "dynamic shared memory", where);
  }
  return dynamic_;
}

std::string SharedMemory::EndBlock() {
  std::string damage;
  if (HasAsan()) {
    PoisonMemory(memory_, used_);
    return damage;
  }
  for (const Array& array : arrays_) {
    for (size_t i = 0; i < kRedzone && damage.empty(); ++i) {
      const bool before = array.data[-1 - static_cast<ptrdiff_t>(i)] != kRedzoneByte;
      const bool after = array.data[array.bytes + i] != kRedzoneByte;
      if (!before && !after) continue;
      damage = Text() << "a thread wrote " << (after ? i : i + 1) << " bytes "
                      << (after ? "past the end" : "before the beginning") << " of " << array.name
                      << " (" << array.bytes << " bytes), declared at " << array.where
                      << ". --config=memory or simrace names the thread and the line";
    }
  }
  return damage;
}

bool SharedMemory::InBounds(const void* p, size_t bytes, std::string* array) const {
  const char* address = static_cast<const char*>(p);
  for (const Array& candidate : arrays_) {
    if (address >= candidate.data && address + bytes <= candidate.data + candidate.bytes) {
      return true;
    }
  }
  *array = Describe(p);
  return false;
}

std::string SharedMemory::Describe(const void* p) const {
  const char* address = static_cast<const char*>(p);
  const Array* nearest = nullptr;
  for (const Array& candidate : arrays_) {
    if (nearest == nullptr || candidate.data <= address) nearest = &candidate;
  }
  if (nearest == nullptr) return "shared memory without an array";
  return Text() << nearest->name << " (" << nearest->bytes << " bytes, declared at "
                << nearest->where << "), offset " << (address - nearest->data);
}

}  // namespace cudasim
