#include "tools/cudasim/ptx/races.h"

#include "tools/cudasim/ptx/flow.h"
#include "tools/cudasim/ptx/warp.h"

namespace cudasim {
namespace ptx {
namespace {

bool IsAtomic(std::string_view opcode, std::string_view base) {
  if (base == "atom" || base == "red") return true;
  for (const std::string_view word : {".volatile", ".relaxed", ".acquire", ".release"}) {
    if (opcode.find(word) != std::string_view::npos) return true;
  }
  return false;
}

}  // namespace

void SharedRaces::Begin(size_t bytes) {
  words_.assign((bytes + 3) / 4, Word{});
  phase_ = 1;
}

void SharedRaces::Check(const Warp& warp, const Instruction* i, const uint64_t* offsets,
                        uint32_t bytes) {
  const Statement& statement = warp.program->body.statements[i->statement];
  const std::string_view base = BaseOpcode(statement);
  const bool writes = base != "ld" && base != "ldmatrix";
  const Access access{phase_, warp.number,  IsAtomic(statement.opcode, base),
                      false,  warp.program, i};
  for (int lane : LanesOf(warp.mask)) {
    const uint64_t end = (offsets[lane] + bytes + 3) / 4;
    for (uint64_t w = offsets[lane] / 4; w < end; ++w) {
      Word& word = words_[w];
      const bool after_write = Conflicts(word.write, access);
      if (after_write || (writes && Conflicts(word.read, access))) {
        const Access& other = after_write ? word.write : word.read;
        warp.Fail(Bug::kRace, i, lane,
                  "warp " + std::to_string(warp.number) + (writes ? " writes" : " reads") +
                      " shared memory at byte " + std::to_string(4 * w) + ", which " +
                      (other.several ? "several warps" : "warp " + std::to_string(other.warp)) +
                      (after_write ? " wrote" : " read") + " with no barrier between, at " +
                      other.program->Describe(other.at));
      }
      Access& same = writes ? word.write : word.read;
      const bool several = same.phase == phase_ && (same.several || same.warp != access.warp);
      same = access;
      same.several = several;
    }
  }
}

}  // namespace ptx
}  // namespace cudasim
