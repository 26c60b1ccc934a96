#include "tools/cudasim/ptx/detectors/races.h"

#include <algorithm>
#include <cstring>

#include "tools/cudasim/ptx/block.h"
#include "tools/cudasim/ptx/flow.h"

namespace cudasim {
namespace ptx {
namespace {

bool Uses(const Operand& operand, int reg) {
  return operand.reg == reg ||
         std::any_of(operand.elements.begin(), operand.elements.end(),
                     [reg](const Operand& element) { return Uses(element, reg); });
}

bool IsUsed(const Body& body, int reg) {
  return std::any_of(body.statements.begin(), body.statements.end(), [&](const Statement& each) {
    const auto first = each.operands.begin() + (HasResult(each) && !each.operands.empty() ? 1 : 0);
    return each.guard == reg || std::any_of(first, each.operands.end(),
                                            [reg](const Operand& one) { return Uses(one, reg); });
  });
}

// Vectors are often read with the padding between the fields that they are made of.
uint32_t UsedBytes(const Body& body, const Statement& statement) {
  if (statement.operands.empty() || statement.operands[0].kind != Operand::Kind::kVector)
    return ~0u;
  const auto type = TypeNamed(statement.opcode.substr(statement.opcode.rfind('.') + 1));
  uint32_t used = 0;
  int at = 0;
  for (const Operand& element : statement.operands[0].elements) {
    const int bytes = BytesOf(type);
    if (element.reg >= 0 && IsUsed(body, element.reg)) used |= ((uint32_t{1} << bytes) - 1) << at;
    at += bytes;
  }
  return used;
}

// Whether a load is a compare-and-swap's first guess: the two have the same address. What it reads
// is checked by the swap.
bool IsGuess(const Body& body, const Statement& load) {
  if (load.operands.size() < 2 || load.operands[1].reg < 0) return false;
  return std::any_of(body.statements.begin(), body.statements.end(), [&](const Statement& each) {
    return BaseOpcode(each) == "atom" && each.opcode.find(".cas") != each.opcode.npos &&
           each.operands[1].reg == load.operands[1].reg &&
           each.operands[1].value == load.operands[1].value;
  });
}

Site MakeSite(const Warp& warp, const Instruction* i) {
  const Statement& statement = warp.program->body.statements[i->statement];
  const std::string_view base = BaseOpcode(statement), opcode = statement.opcode;
  const auto has = [&](std::string_view word) { return opcode.find(word) != opcode.npos; };
  Site site{};
  site.program = warp.program;
  site.at = i;
  const bool atomic = base == "atom" || base == "red";
  site.copies = base == "cp";
  site.writes = atomic || base == "st" || site.copies;
  site.reads = base != "st" && !site.copies;
  site.strong = atomic || has(".volatile") || has(".relaxed") || has(".acquire") ||
                has(".release") || has(".acq_rel") ||
                (base == "ld" && IsGuess(warp.program->body, statement));
  site.for_all = !has(".cta");
  site.is_fence = has(".release") || has(".acq_rel");
  site.constant = base == "ld" && has(".nc");
  site.used = base == "ld" ? UsedBytes(warp.program->body, statement) : ~0u;
  return site;
}

// A thread's access takes the place of its last one, if that is of the same kind. So does an atomic
// one of other threads' before it: what the thread does later at this address comes after theirs,
// since all see the values of an address in the same order.
void Remember(const Access& access, bool atomic, Access* records) {
  Access& last = records[0];
  const bool same =
      last.thread == access.thread && last.block == access.block && last.strong == access.strong;
  const bool superseded = atomic && last.strong && (last.bytes & ~access.bytes) == 0;
  if (!same && !superseded) records[1] = last;
  const bool joins = same && last.time == access.time;
  const uint8_t bytes = joins ? last.bytes | access.bytes : access.bytes;
  last = access;
  last.bytes = bytes;
}

// Whether the warp's store stores the same value for two lanes. Their registers tell, as long as
// the lanes are at this instruction.
bool StoreTheSame(const Warp& warp, const Instruction* i, int one, int other) {
  const Body& body = warp.program->body;
  const Operand& value = body.statements[i->statement].operands[1];
  const bool vector = value.kind == Operand::Kind::kVector;
  for (size_t j = 0; j < (vector ? value.elements.size() : 1); ++j) {
    const Operand& element = vector ? value.elements[j] : value;
    if (element.kind == Operand::Kind::kImmediate) continue;
    if (element.kind != Operand::Kind::kRegister) return false;
    const auto bytes = static_cast<size_t>(LaneBytes(body.registers[element.reg]) / kLanes);
    const auto* const lanes =
        warp.Lanes<std::byte>(vector ? warp.program->slots[i->extra + j] : i->d);
    if (std::memcmp(lanes + one * bytes, lanes + other * bytes, bytes) != 0) return false;
  }
  return true;
}

const char* Verb(const Site& site, bool writes, bool past) {
  if (site.copies && writes) return past ? "copied to by cp.async" : "copies by cp.async to";
  if (site.reads && site.writes) return past ? "accessed atomically" : "accesses atomically";
  if (writes) return past ? "wrote" : "writes";
  return past ? "read" : "reads";
}

}  // namespace

Cell* GridRaces::CellOf(uint64_t address) {
  const uint64_t page = address / kPageBytes;
  if (page != last_page_) {
    auto found = pages_.find(page);
    if (found == pages_.end()) {
      if (pages_.size() == kMaxPages) return nullptr;
      found = pages_.emplace(page, std::make_unique<Cell[]>(kPageBytes / 4)).first;
    }
    last_page_ = page;
    last_cells_ = found->second.get();
  }
  return last_cells_ + address % kPageBytes / 4;
}

uint32_t GridRaces::SiteOf(const Warp& warp, const Instruction* i) {
  const auto [found, is_new] = numbers_.emplace(i, static_cast<uint32_t>(sites_.size()));
  if (is_new) sites_.push_back(MakeSite(warp, i));
  return found->second;
}

void Races::Begin(uint32_t block, size_t warps, size_t shared_bytes) {
  block_ = block;
  clocks_.Begin(block, warps);
  cells_.assign((shared_bytes + 3) / 4, {});
  states_.assign(shared_bytes, State::kNeverWritten);
  never_written_.clear();
  extents_.fill({});
}

void Races::End() {
  if (!never_written_.empty()) throw Fault(Bug::kUninitialised, never_written_);
}

void Races::CheckShared(const Warp& warp, const Instruction* i, const uint64_t* offsets,
                        uint32_t bytes) {
  const uint32_t number = grid_->SiteOf(warp, i);
  const Site site = grid_->site(number);
  for (int lane : LanesOf(warp.mask)) {
    const Side side{warp, i, lane, number, site.writes, true};
    const uint64_t key = kSharedWindow | uint64_t{block_} << 24 | offsets[lane];
    if (site.strong && site.reads) clocks_.Acquire(warp, lane, key);
    CheckState(side, offsets[lane], bytes);
    Touch(side, offsets[lane], bytes);
    if (site.strong && site.writes) {
      clocks_.Release(warp, lane, key, site.is_fence, site.for_all);
    }
  }
}

void Races::CheckGlobal(const Warp& warp, const Instruction* i, const uint64_t* at,
                        uint32_t bytes) {
  const uint32_t number = grid_->SiteOf(warp, i);
  const Site site = grid_->site(number);
  for (int lane : LanesOf(warp.mask)) {
    if (site.strong && site.reads) clocks_.Acquire(warp, lane, at[lane]);
    Touch({warp, i, lane, number, site.writes && !site.copies, false}, at[lane], bytes);
    if (site.strong && site.writes) {
      clocks_.Release(warp, lane, at[lane], site.is_fence, site.for_all);
    }
  }
}

void Races::CheckArrival(const Warp& warp, const Instruction* wait, const AsyncCopy& copy) {
  std::fill_n(states_.begin() + copy.to, copy.bytes, State::kWritten);
  const uint32_t site = grid_->SiteOf(warp, copy.at);
  // Until now its source had to stay as it was.
  if (copy.present > 0) {
    Touch({warp, wait, copy.lane, site, false, false}, reinterpret_cast<uintptr_t>(copy.from),
          copy.present);
  }
  Touch({warp, wait, copy.lane, site, true, true}, copy.to, copy.bytes);
}

void Races::CheckState(const Side& side, uint64_t offset, uint32_t bytes) {
  const Site& site = grid_->site(side.site);
  State* const states = states_.data() + offset;
  const auto any = [&](State state) { return std::find(states, states + bytes, state); };
  const State* const copied = any(State::kBeingCopied);
  if (copied != states + bytes) {
    const uint64_t at = static_cast<uint64_t>(copied - states_.data());
    const Access& copy = cells_[at / 4].writes[0];
    const Site& other = grid_->site(copy.site);
    side.warp.Fail(Bug::kMissingWait, side.i, side.lane,
                   std::string(Verb(site, side.writes, false)) + " shared memory at byte " +
                       std::to_string(at) + ", to which " + Name(side, copy) +
                       " has begun a copy, and not waited for it, at " +
                       other.program->Describe(other.at));
  }
  const State* unwritten = any(State::kNeverWritten);
  while (unwritten != states + bytes &&
         ((site.used >> (unwritten - states) & 1) == 0 || *unwritten != State::kNeverWritten)) {
    ++unwritten;
  }
  if (site.reads && unwritten != states + bytes && never_written_.empty()) {
    // If another thread writes it later, that is a race, which says more.
    never_written_ = side.warp.Message(side.i, side.lane,
                                       "reads shared memory at byte " +
                                           std::to_string(unwritten - states_.data()) +
                                           ", which was not written before");
  }
  if (side.writes) {
    std::fill_n(states, bytes, site.copies ? State::kBeingCopied : State::kWritten);
  }
}

void Races::Touch(const Side& side, uint64_t at, uint32_t bytes) {
  Access access;
  access.time = clocks_.now();
  access.block = block_;
  access.thread = static_cast<uint16_t>(side.warp.number * kLanes + side.lane);
  access.site = side.site;
  access.strong = grid_->site(side.site).strong;
  for (uint64_t word = at / 4; word < (at + bytes + 3) / 4; ++word) {
    const uint64_t from = std::max(4 * word, at) - 4 * word;
    const uint64_t to = std::min(4 * word + 4, at + bytes) - 4 * word;
    access.bytes = static_cast<uint8_t>((1u << to) - (1u << from));
    Cell* const cell = side.shared ? &cells_[word] : grid_->CellOf(4 * word);
    if (cell != nullptr) TouchCell(side, cell, access, 4 * word + from);
  }
}

void Races::TouchCell(const Side& side, Cell* cell, const Access& access, uint64_t at) {
  for (const Access& before : cell->writes) {
    if (Conflicts(side, before, access)) FailRace(side, before, true, at);
  }
  if (side.writes) {
    for (const Access& before : cell->reads) {
      if (Conflicts(side, before, access)) FailRace(side, before, false, at);
    }
  }
  const Site& site = grid_->site(access.site);
  Remember(access, site.strong && site.reads && site.writes,
           side.writes ? cell->writes : cell->reads);
}

bool Races::Conflicts(const Side& side, const Access& before, const Access& access) const {
  if (before.time == 0 || (before.bytes & access.bytes) == 0) return false;
  if (grid_->site(access.site).constant) return true;
  if (before.thread == access.thread && before.block == access.block) return false;
  if (before.strong && access.strong &&
      (before.block == access.block ||
       (grid_->site(before.site).for_all && grid_->site(access.site).for_all))) {
    return false;
  }
  if (clocks_.Knows(side.warp, side.lane, before.time, before.block, before.thread)) return false;
  // Lanes that store by the same instruction: one of them wins, and which does not matter if they
  // store the same.
  const Site& site = grid_->site(access.site);
  const bool together = before.site == access.site && site.writes && !site.reads && !site.copies &&
                        before.block == access.block && before.time == access.time &&
                        before.thread / kLanes == side.warp.number;
  return !(together && StoreTheSame(side.warp, side.i, before.thread % kLanes, side.lane));
}

std::string Races::Name(const Side& side, const Access& other) const {
  return side.warp.block->NameOther(other.block, other.thread);
}

void Races::FailRace(const Side& side, const Access& before, bool before_writes,
                     uint64_t at) const {
  const Site &site = grid_->site(side.site), &other = grid_->site(before.site);
  const Settings& settings = side.warp.block->settings();
  std::string what = "shared memory at byte " + std::to_string(at);
  if (!side.shared) {
    char address[24];
    std::snprintf(address, sizeof(address), "%#llx", static_cast<unsigned long long>(at));
    what = std::string("global memory at ") + address;
    const std::string known = settings.describe ? settings.describe(at) : "";
    if (!known.empty()) what += " (" + known + ")";
  }
  side.warp.Fail(Bug::kRace, side.i, side.lane,
                 std::string(Verb(site, side.writes, false)) + " " + what + ", which " +
                     Name(side, before) + " " + Verb(other, before_writes, true) +
                     (site.constant ? ", though ld.global.nc takes it to be constant"
                                    : ", and nothing orders the two") +
                     ";\nthe other at " + other.program->Describe(other.at));
}

}  // namespace ptx
}  // namespace cudasim
