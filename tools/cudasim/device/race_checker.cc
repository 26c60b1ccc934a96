#ifdef CUDASIM_RACE

#include "race_checker.h"

#include <algorithm>
#include <iterator>

#include "race.h"
#include "report.h"

namespace cudasim {
namespace {

CUDASIM_THREAD_LOCAL RaceChecker* current = nullptr;

// Identifies an instruction by its distance from a function of the program.
uint32_t CodeNumber(const void* code) {
  return static_cast<uint32_t>(reinterpret_cast<intptr_t>(code) -
                               reinterpret_cast<intptr_t>(&RaceChecker::Get));
}
const void* CodeOf(uint32_t number) {
  return reinterpret_cast<const void*>(reinterpret_cast<intptr_t>(&RaceChecker::Get) +
                                       static_cast<int32_t>(number));
}

// Whether this is a variable of the OS thread, such as threadIdx.
bool IsThreadLocal(uintptr_t address) {
  const auto pointer = reinterpret_cast<uintptr_t>(__builtin_thread_pointer());
  return address - (pointer - 16384) < 16384 + 2048;
}

}  // namespace

RaceChecker* RaceChecker::Current() { return current; }

RaceChecker& RaceChecker::Get() {
  static auto* checker = new RaceChecker;
  return *checker;
}

void RaceChecker::BeginGrid() {
  grid_mutex_.lock();
  grid_begin_ = ++epoch_;
  blocks_.clear();
  global_.BeginGrid();
  for (Extent& extent : accessible_) extent = {};
  current = this;
}

void RaceChecker::EndGrid() {
  current = nullptr;
  grid_mutex_.unlock();
}

void RaceChecker::BeginBlock(BlockRunner* runner) {
  runner_ = runner;
  block_begin_ = ++epoch_;
  blocks_.push_back({block_begin_, blockIdx, {}});
  const auto threads = static_cast<size_t>(runner->threads());
  std::fill_n(clocks_.begin(), 32 * threads, 0u);
  std::fill_n(fenced_.begin(), threads, 0u);
  std::fill_n(synchronised_.begin(), threads, false);
  first_synchronised_ = 0;
  if (shared_cells_.empty()) shared_cells_.resize(SharedMemory::kArenaBytes / 4);
}

void RaceChecker::EndBlock() { runner_ = nullptr; }

// Each lane has now seen what all others have done and seen.
void RaceChecker::OrderLanes(unsigned present) {
  uint32_t seen[32] = {};
  const size_t first = static_cast<size_t>(thread_) / 32 * 32;
  for (unsigned rest = present; rest != 0; rest &= rest - 1) {
    const auto lane = static_cast<size_t>(__builtin_ctz(rest));
    uint32_t* clock = &clocks_[(first + lane) * 32];
    ++clock[lane];  // its accesses since the last call
    for (int i = 0; i < 32; ++i) seen[i] = std::max(seen[i], clock[i]);
  }
  for (unsigned rest = present; rest != 0; rest &= rest - 1) {
    const auto lane = static_cast<size_t>(__builtin_ctz(rest));
    std::copy_n(seen, 32, &clocks_[(first + lane) * 32]);
  }
}

void RaceChecker::Fence() { fenced_[static_cast<size_t>(thread_)] = epoch_; }

const RaceChecker::BlockOfGrid& RaceChecker::BlockOf(uint32_t epoch) const {
  const auto after = std::upper_bound(
      blocks_.begin(), blocks_.end(), epoch,
      [](uint32_t value, const BlockOfGrid& block) { return value < block.begin; });
  return *(after - 1);
}

bool RaceChecker::PublishedAndSeen(const AccessRecord& before) const {
  const bool seen = synchronised_[static_cast<size_t>(thread_)] ||
                    (first_synchronised_ != 0 && first_synchronised_ < epoch_);
  if (!seen) return false;
  for (const Publication& publication : BlockOf(before.epoch).published) {
    if (before.epoch < publication.epoch ||
        (before.epoch == publication.epoch && before.thread == publication.thread)) {
      return true;
    }
  }
  return false;
}

bool RaceChecker::Ordered(const AccessRecord& before, bool shared) const {
  if (before.epoch < block_begin_) {
    return shared || before.epoch < grid_begin_ || PublishedAndSeen(before);
  }
  if (before.epoch < epoch_ || before.thread == thread_) return true;
  if (before.thread / 32 != thread_ / 32) return false;
  // Times count from 1; a __syncwarp makes all times up to the lane's own visible to the others.
  return before.time <= clocks_[static_cast<size_t>(thread_) * 32 + before.thread % 32];
}

void RaceChecker::Remember(AccessRecord (&records)[2], const AccessRecord& record) {
  // Replaces the older record, unless the newer one is the same thread's.
  if (records[0].thread != record.thread || records[0].epoch != record.epoch) {
    records[1] = records[0];
  }
  records[0] = record;
}

void RaceChecker::AccessCell(Cell* cell, const AccessRecord& record, bool write, bool shared,
                             uintptr_t address) {
  auto conflicts = [&](const AccessRecord& before) {
    return before.epoch != 0 && (before.bytes & record.bytes) != 0 &&
           !(before.atomic && record.atomic) && !Ordered(before, shared);
  };
  for (const AccessRecord& before : cell->writes) {
    if (conflicts(before)) ReportRace(before, true, record, write, shared, address);
  }
  if (write) {
    for (const AccessRecord& before : cell->reads) {
      if (conflicts(before)) ReportRace(before, false, record, write, shared, address);
    }
  }
  Remember(write ? cell->writes : cell->reads, record);
}

void RaceChecker::CheckShared(uintptr_t address, size_t bytes, bool write, const void* code) {
  std::string array;
  if (runner_->shared().InBounds(reinterpret_cast<const void*>(address), bytes, &array)) return;
  Report(Bug::kOutOfBounds, Text() << (write ? "write of " : "read of ") << bytes << " bytes at "
                                   << SourceAt(code) << " outside of " << array);
}

// Finds accesses outside of a block to the byte; a guard page may begin up to 255 bytes after it.
void RaceChecker::CheckGlobal(uintptr_t address, size_t bytes, bool write, const void* code) {
  for (const Extent& extent : accessible_) {
    if (extent.Contains(address, bytes)) return;
  }
  const Extent extent = AccessibleAt(address);
  if (extent.Contains(address, bytes)) {
    accessible_[next_accessible_++ % std::size(accessible_)] = extent;
    return;
  }
  // Of memory that is no block's, an access may begin on one page and end on the next.
  const uintptr_t last = address + bytes - 1;
  const bool across = extent.Contains(address, 1);
  if (across && AccessibleAt(last).Contains(last, 1)) return;
  const uintptr_t outside = across ? extent.end : address;
  Report(Bug::kOutOfBounds, Text() << (write ? "write of " : "read of ") << bytes << " bytes at "
                                   << SourceAt(code) << ", " << DescribeAddress(outside));
}

void RaceChecker::Access(uintptr_t address, size_t bytes, bool write, bool atomic,
                         const void* code) {
  if (runner_ == nullptr || !runner_->InThread()) return;
  const auto* pointer = reinterpret_cast<const void*>(address);
  if (runner_->fibers().OnStack(pointer) || IsThreadLocal(address)) return;
  const bool shared = runner_->shared().Contains(pointer);
  if (shared) {
    CheckShared(address, bytes, write, code);
  } else {
    CheckGlobal(address, bytes, write, code);
  }
  if ((bytes & (bytes - 1)) == 0 && bytes <= 16 && address % bytes != 0) {
    Report(Bug::kMisaligned, Text() << (write ? "write of " : "read of ") << bytes << " bytes at "
                                    << pointer << ", by " << SourceAt(code));
  }
  if (atomic) {
    // This publishes what precedes the thread's last fence, and sees what others have published.
    const auto me = static_cast<size_t>(thread_);
    if (fenced_[me] != 0) blocks_.back().published.push_back({fenced_[me], thread_});
    synchronised_[me] = true;
    if (first_synchronised_ == 0) first_synchronised_ = epoch_;
  }
  AccessRecord record;
  record.epoch = epoch_;
  record.thread = static_cast<uint16_t>(thread_);
  record.atomic = atomic;
  record.time = clocks_[static_cast<size_t>(thread_) * 32 + static_cast<size_t>(thread_) % 32] + 1;
  record.code = CodeNumber(code);
  const uintptr_t arena = reinterpret_cast<uintptr_t>(runner_->shared().begin());
  for (uintptr_t word = address & ~uintptr_t{3}; word < address + bytes; word += 4) {
    const uintptr_t from = std::max(word, address) - word;
    const uintptr_t to = std::min(word + 4, address + bytes) - word;
    record.bytes = static_cast<uint8_t>((1u << to) - (1u << from));
    Cell* cell;
    if (shared) {
      cell = &shared_cells_[(word - arena) / 4];
    } else {
      Cell* cells = global_.PageOf(word);
      if (cells == nullptr) return;
      cell = &cells[word % GlobalShadow::kPageBytes / 4];
    }
    AccessCell(cell, record, write, shared, std::max(word, address));
  }
}

void RaceChecker::ReportRace(const AccessRecord& before, bool before_writes,
                             const AccessRecord& now, bool now_writes, bool shared,
                             uintptr_t address) {
  auto what = [](const AccessRecord& record, bool writes) {
    return std::string(record.atomic ? "atomic" : writes ? "write" : "read");
  };
  Text text;
  text << what(now, now_writes) << " at " << SourceAt(CodeOf(now.code)) << "\n";
  if (shared) {
    text << "of " << runner_->shared().Describe(reinterpret_cast<const void*>(address));
  } else {
    text << "of global memory at " << reinterpret_cast<const void*>(address);
  }
  text << "\nis not ordered after the " << what(before, before_writes) << " by thread "
       << runner_->IndexOf(before.thread);
  if (before.epoch < block_begin_) text << " of block " << BlockOf(before.epoch).index;
  text << " at " << SourceAt(CodeOf(before.code));
  Report(Bug::kRace, text);
  std::abort();  // Report() does not return here
}

void RaceBeginGrid() { RaceChecker::Get().BeginGrid(); }
void RaceEndGrid() { RaceChecker::Get().EndGrid(); }
void RaceBeginBlock(BlockRunner* runner) { RaceChecker::Get().BeginBlock(runner); }
void RaceEndBlock() { RaceChecker::Get().EndBlock(); }
void RaceEnterThread(int thread) { RaceChecker::Get().EnterThread(thread); }
void RaceOrderBlock() { RaceChecker::Get().OrderBlock(); }
void RaceNoteRead(const void* p, size_t bytes) {
  RaceChecker::Get().Access(reinterpret_cast<uintptr_t>(p), bytes, false, false,
                            __builtin_return_address(0));
}
void RaceNoteWrite(const void* p, size_t bytes) {
  RaceChecker::Get().Access(reinterpret_cast<uintptr_t>(p), bytes, true, false,
                            __builtin_return_address(0));
}
void OrderLanes(unsigned present) { RaceChecker::Get().OrderLanes(present); }
void Fence() {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  if (current != nullptr) current->Fence();
}

}  // namespace cudasim

#else

#include "cudasim/atomics.h"
#include "cudasim/sync.h"

namespace cudasim {
void OrderLanes(unsigned) {}
void Fence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
}  // namespace cudasim

#endif
