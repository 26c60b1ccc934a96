// The table of memory blocks, by address.
#include "block.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>

#include "cudasim/access.h"
#include "cudasim/settings.h"
#include "state.h"

namespace cudasim::runtime {
namespace {

// How far from a block an address is still attributed to it: its guard pages.
constexpr uintptr_t kNear = 8192;

struct Table {
  std::map<uintptr_t, std::shared_ptr<Block>> live;   // By their first address.
  std::map<uintptr_t, std::shared_ptr<Block>> freed;  // For reports.
  std::atomic<uint64_t> changes{1};
};

Table& GetTable() {
  static auto* const table = new Table;
  return *table;
}

std::shared_ptr<Block> Before(const std::map<uintptr_t, std::shared_ptr<Block>>& blocks,
                              uintptr_t address) {
  auto next = blocks.upper_bound(address);
  return next == blocks.begin() ? nullptr : std::prev(next)->second;
}

std::string Hex(uintptr_t address) {
  char text[24];
  std::snprintf(text, sizeof(text), "0x%zx", static_cast<size_t>(address));
  return text;
}

// Reports device memory that was not freed. Runs after the destructors of static objects. What
// cudaFreeAsync freed counts as freed even if the free was still in its stream, and was dropped.
__attribute__((destructor(101))) void ReportLeaks() {
  if (GetSettings().leaks == Leaks::kOff) return;
  size_t bytes = 0;
  size_t count = 0;
  std::string largest;
  constexpr size_t kShown = 5;
  {
    const Lock lock(GetState().mutex);
    for (const auto& [begin, block] : GetTable().live) {
      if (block->kind != BlockKind::kDevice && block->kind != BlockKind::kManaged) continue;
      if (block->freed || block->permanent) continue;
      bytes += block->size;
      if (count++ < kShown) largest += "\n  " + DescribeWithSites(*block);
    }
  }
  if (count == 0) return;
  const std::string text = std::to_string(count) + " blocks of device memory, " +
                           std::to_string(bytes) +
                           " bytes, were never freed; among them:" + largest;
  if (GetSettings().leaks == Leaks::kError) Report(Bug::kLeak, text);
  std::fprintf(stderr, "cudasim: warning: %s\n", text.c_str());
}

}  // namespace

std::shared_ptr<Block> FindBlock(const void* address, size_t size) {
  const auto begin = reinterpret_cast<uintptr_t>(address);
  std::shared_ptr<Block> block = Before(GetTable().live, begin);
  if (block == nullptr || begin > block->end() || size > block->end() - begin) return nullptr;
  return block;
}

std::shared_ptr<Block> FindNear(uintptr_t address) {
  for (const auto* blocks : {&GetTable().live, &GetTable().freed}) {
    const std::shared_ptr<Block> block = Before(*blocks, address);
    if (block != nullptr && block->contains(address)) return block;
  }
  for (const auto* blocks : {&GetTable().live, &GetTable().freed}) {
    const std::shared_ptr<Block> below = Before(*blocks, address);
    if (below != nullptr && address < below->end() + kNear) return below;
    const auto above = blocks->upper_bound(address);
    if (above != blocks->end() && address + kNear >= above->first) return above->second;
  }
  return nullptr;
}

std::shared_ptr<Block> FindFreed(const void* address) {
#if defined(__SANITIZE_ADDRESS__)
  static_cast<void>(address);  // The heap may have reused it.
  return nullptr;
#else
  const auto begin = reinterpret_cast<uintptr_t>(address);
  const std::shared_ptr<Block> block = Before(GetTable().freed, begin);
  return block != nullptr && block->contains(begin) ? block : nullptr;
#endif
}

void ForgetFreed(uintptr_t begin) { GetTable().freed.erase(begin); }

std::vector<std::shared_ptr<Block>> LiveBlocks() {
  std::vector<std::shared_ptr<Block>> blocks;
  for (const auto& [begin, block] : GetTable().live) blocks.push_back(block);
  return blocks;
}

const std::atomic<uint64_t>& MemoryChanges() { return GetTable().changes; }

void AddBlock(std::shared_ptr<Block> block) {
  ++GetTable().changes;
  Table& table = GetTable();
  table.freed.erase(block->begin);
  table.live[block->begin] = std::move(block);
}

void RemoveBlock(const std::shared_ptr<Block>& block) {
  ++GetTable().changes;
  Table& table = GetTable();
  table.live.erase(block->begin);
  block->freed = true;
  block->uses.clear();
  if (block->kind == BlockKind::kRegistered) return;
  // Exceeds the mappings in quarantine only if there are none: under AddressSanitizer.
  constexpr size_t kMaxFreed = 10000;
  if (table.freed.size() >= kMaxFreed) table.freed.erase(table.freed.begin());
  table.freed[block->begin] = block;
}

std::string Describe(const Block& block) {
  const char* const kNames[] = {"device memory", "managed memory", "pinned host memory",
                                "registered host memory"};
  std::string text = kNames[static_cast<int>(block.kind)];
  text += " " + Hex(block.begin) + " of " + std::to_string(block.size) + " bytes";
  if (block.kind == BlockKind::kDevice) text += " on device " + std::to_string(block.device);
  return text;
}

std::string Position(const Block& block, uintptr_t address) {
  if (address < block.begin) return std::to_string(block.begin - address) + " bytes before ";
  if (address >= block.end()) return std::to_string(address - block.end()) + " bytes after ";
  return "at byte " + std::to_string(address - block.begin) + " of ";
}

std::string DescribeWithSites(const Block& block) {
  std::string text = Describe(block) + ", allocated at\n" + Describe(block.allocated);
  if (block.freed) text += "  freed at\n" + Describe(block.freed_at);
  return text;
}

}  // namespace cudasim::runtime

namespace cudasim {

Extent AccessibleAt(uintptr_t address) {
  using namespace runtime;  // NOLINT
  constexpr uintptr_t kPage = 4096;
  const Lock lock(GetState().mutex);
  const std::shared_ptr<Block> block = FindNear(address);
  // Freed memory, too: a kernel may run before a free in its stream, and after it the access
  // faults.
  if (block != nullptr && block->contains(address)) return {block->begin, block->end()};
  if (block != nullptr && address - block->mapping < block->mapping_size) return {};
#if defined(__SANITIZE_ADDRESS__)
  // Blocks have no mappings of their own, but the sanitizer's redzones.
  constexpr uintptr_t kRedzone = 16;
  if (block != nullptr && block->kind != BlockKind::kRegistered &&
      address - (block->begin - kRedzone) < block->size + 2 * kRedzone) {
    return {};
  }
#endif
  return {address / kPage * kPage, address / kPage * kPage + kPage};
}

std::string DescribeAddress(uintptr_t address) {
  using namespace runtime;  // NOLINT
  const Lock lock(GetState().mutex);
  const std::shared_ptr<Block> block = FindNear(address);
  return block == nullptr ? "" : Position(*block, address) + DescribeWithSites(*block);
}

}  // namespace cudasim
