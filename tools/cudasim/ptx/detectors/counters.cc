#include "tools/cudasim/ptx/detectors/counters.h"

#include <algorithm>
#include <utility>

#include "tools/cudasim/ptx/addresses.h"
#include "tools/cudasim/ptx/collectives.h"
#include "tools/cudasim/ptx/control.h"
#include "tools/cudasim/ptx/flow.h"
#include "tools/cudasim/ptx/memory.h"

namespace cudasim {
namespace ptx {
namespace {

using Kind = InstructionKind;

bool OneOf(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

// The n-th word from the end of "ld.global.v4.f32".
std::string_view WordFromEnd(std::string_view opcode, int n) {
  for (; n > 0; --n) opcode = opcode.substr(0, std::min(opcode.rfind('.'), opcode.size()));
  return opcode.substr(opcode.rfind('.') + 1);
}

Kind KindOf(std::string_view base, std::string_view opcode) {
  const bool is_float = IsFloat(TypeNamed(WordFromEnd(opcode, 0)));
  if (OneOf(base, {"mov", "cvta"})) return Kind::kMove;
  if (base == "cvt") {
    return is_float || IsFloat(TypeNamed(WordFromEnd(opcode, 1))) ? Kind::kConvert : Kind::kInteger;
  }
  if (OneOf(base, {"ex2", "lg2", "rcp", "rsqrt", "sqrt", "sin", "cos", "tanh", "div", "rem"})) {
    return Kind::kSpecial;
  }
  if (OneOf(base, {"shfl", "vote", "match", "redux", "activemask", "elect"}))
    return Kind::kExchange;
  if (OneOf(base, {"bra", "brx", "call", "ret", "exit", "trap", "nanosleep", "bar", "barrier",
                   "fence", "membar", "cp", "pmevent", "brkpt"})) {
    return Kind::kControl;
  }
  if (base == "mma") return Kind::kTensor;
  return is_float ? Kind::kFloat : Kind::kInteger;
}

// Lanes' addresses in units, without those that others have, too.
int Distinct(const uint64_t* at, uint32_t mask, uint64_t unit, uint64_t* distinct) {
  int count = 0;
  for (int lane : LanesOf(mask)) {
    const uint64_t x = at[lane] / unit;
    int j = count;
    while (j > 0 && distinct[j - 1] != x) --j;  // often it is the last one's
    if (j == 0) distinct[count++] = x;
  }
  return count;
}

// The cycles that one pass of these lanes over the banks takes.
uint64_t Cycles(const uint64_t* at, uint32_t mask, uint32_t bytes, bool atomic) {
  constexpr int kBanks = 32, kWord = 4;
  uint64_t addresses[kLanes], most = 0;
  int count = 0;
  if (atomic) {
    for (int lane : LanesOf(mask)) addresses[count++] = at[lane] / kWord;
  } else {
    count = Distinct(at, mask, std::max<uint32_t>(bytes, kWord), addresses);
    for (int j = 0; j < count; ++j) addresses[j] *= std::max<uint32_t>(bytes, kWord) / kWord;
  }
  uint64_t visits[kBanks] = {};
  for (int j = 0; j < count; ++j) {
    for (uint32_t word = 0; word * kWord < bytes; ++word) {
      most = std::max(most, ++visits[(addresses[j] + word) % kBanks]);
    }
  }
  return most;
}

// Of the mask, the lanes whose generic addresses lie in a window.
uint32_t LanesIn(uint64_t window, const uint64_t* at, uint32_t mask) {
  uint32_t lanes = 0;
  for (int lane : LanesOf(mask)) {
    if ((at[lane] & kWindowMask) == window) lanes |= uint32_t{1} << lane;
  }
  return lanes;
}

}  // namespace

Traffic GlobalTraffic(const uint64_t* at, uint32_t mask, uint32_t bytes) {
  constexpr uint64_t kSector = 32;
  uint64_t distinct[kLanes];
  Traffic traffic{1, uint64_t{bytes} * static_cast<uint64_t>(__builtin_popcount(mask))};
  traffic.moved = static_cast<uint64_t>(Distinct(at, mask, kSector, distinct));
  const auto values = static_cast<uint64_t>(Distinct(at, mask, bytes, distinct));
  traffic.ideal = (values * bytes + kSector - 1) / kSector;
  return traffic;
}

Traffic SharedTraffic(const uint64_t* at, uint32_t mask, uint32_t bytes, bool atomic) {
  Traffic traffic{1, uint64_t{bytes} * static_cast<uint64_t>(__builtin_popcount(mask))};
  const int lanes = bytes <= 4 ? kLanes : kLanes * 4 / static_cast<int>(bytes);
  for (int first = 0; first < kLanes; first += lanes) {
    const uint32_t part = mask & (kAllLanes >> (kLanes - lanes)) << first;
    if (part == 0) continue;
    traffic.moved += Cycles(at, part, bytes, atomic);
    ++traffic.ideal;
  }
  return traffic;
}

Tally::Site Tally::MakeSite(const Program& program, const Instruction* i) {
  Site site;
  site.what = Site::What::kNotCounted;
  const Instruction* const end = program.code.data() + program.code.size();
  const auto is_last = [&](const Instruction* j) {
    return j < end && j->statement == i->statement &&
           (j + 1 == end || j[1].statement != i->statement);
  };
  // What a statement became is counted where its last instruction runs, by itself or by WithMode.
  if (i->statement < 0 || !(is_last(i) || (i->run == &WithMode && is_last(i + 1)))) return site;
  const Statement& statement = program.body.statements[i->statement];
  const std::string_view base = BaseOpcode(statement), opcode = statement.opcode;
  site.what = Site::What::kOther;
  site.kind = KindOf(base, opcode);
  if (i->run == &BeginCopy) {
    site.what = Site::What::kCopy;
    site.kind = Kind::kGlobal;
    site.bytes = i->count;
  } else if (i->run == &LoadMatrices) {
    site.what = Site::What::kMatrices;
    site.kind = Kind::kShared;
    site.bytes = 16;
  } else if (OneOf(base, {"ld", "ldu", "st", "atom", "red"})) {
    site.kind = Kind::kMove;
    const bool atomic = base == "atom" || base == "red";
    const auto space = static_cast<Space>(i->option >> 1);
    const bool is_parameter = opcode.substr(2, 6) == ".param";  // of a call, too
    if (is_parameter || space == Space::kParam || space == Space::kConst) return site;
    site.what = atomic ? Site::What::kAtomic : Site::What::kAccess;
    site.bytes = static_cast<uint8_t>(BytesOf(TypeNamed(WordFromEnd(opcode, 0))) *
                                      (atomic ? 1 : std::max<int>(i->count, 1)));
  }
  return site;
}

Tally::Site& Tally::SiteOf(const Warp& warp, const Instruction* i) {
  if (warp.program != last_) {
    std::vector<Site>& sites = sites_[warp.program];
    sites.resize(warp.program->code.size());
    last_ = warp.program;
    last_sites_ = sites.data();
  }
  Site& site = last_sites_[warp.NumberOf(i)];
  if (site.what == Site::What::kUnknown) site = MakeSite(*warp.program, i);
  return site;
}

void Tally::Count(const Warp& warp, const Instruction* i) {
  Site& site = SiteOf(warp, i);
  switch (site.what) {
    case Site::What::kUnknown:
    case Site::What::kNotCounted:
      return;
    case Site::What::kOther:
      break;
    case Site::What::kAccess:
    case Site::What::kAtomic:
      CountAccess(warp, i, &site);
      break;
    case Site::What::kCopy:
      CountCopy(warp, i, &site);
      break;
    case Site::What::kMatrices:
      CountMatrices(warp, i, &site);
      break;
  }
  ++site.executions;
}

void Tally::Retract(const Warp& warp, const Instruction* i) {
  Site& site = SiteOf(warp, i);
  if (site.what != Site::What::kNotCounted) --site.executions;
}

void Tally::CountAccess(const Warp& warp, const Instruction* i, Site* site) {
  uint64_t at[kLanes];
  if ((i->option & 1) != 0) {
    ReadAddresses<uint64_t>(warp, i, at);
  } else {
    ReadAddresses<uint32_t>(warp, i, at);
  }
  const auto space = static_cast<Space>(i->option >> 1);
  uint32_t global = space == Space::kGlobal ? warp.mask : 0;
  uint32_t shared = space == Space::kShared ? warp.mask : 0;
  uint32_t local = space == Space::kLocal ? warp.mask : 0;
  if (space == Space::kGeneric) {
    shared = LanesIn(kSharedWindow, at, warp.mask);
    local = LanesIn(kLocalWindow, at, warp.mask);
    global = warp.mask & ~shared & ~local & ~LanesIn(kParamWindow, at, warp.mask);
  }
  const bool atomic = site->what == Site::What::kAtomic;
  if (global != 0) site->global += GlobalTraffic(at, global, site->bytes);
  if (shared != 0) site->shared += SharedTraffic(at, shared, site->bytes, atomic);
  site->local_bytes += site->bytes * static_cast<uint64_t>(__builtin_popcount(local));
  // A generic access hardly ever changes its memory; then the last one's counts.
  site->kind = global != 0 ? Kind::kGlobal : shared != 0 ? Kind::kShared : Kind::kLocal;
}

void Tally::CountCopy(const Warp& warp, const Instruction* i, Site* site) {
  uint64_t at[kLanes];
  Instruction side = *i;  // to read each side's addresses
  side.a = i->d;
  side.imm = static_cast<uint32_t>(i->imm);
  ReadAddresses<uint32_t>(warp, &side, at);
  site->shared += SharedTraffic(at, warp.mask, site->bytes, false);
  side.a = i->a;
  side.imm = static_cast<uint64_t>(static_cast<int64_t>(i->imm) >> 32);
  ReadAddresses<uint64_t>(warp, &side, at);
  const uint32_t* const present = warp.Lanes<uint32_t>(i->b);
  uint32_t reading = 0;
  for (int lane : LanesOf(warp.mask)) reading |= static_cast<uint32_t>(present[lane] != 0) << lane;
  if (reading != 0) site->global += GlobalTraffic(at, reading, site->bytes);
}

void Tally::CountMatrices(const Warp& warp, const Instruction* i, Site* site) {
  if (warp.mask != kAllLanes) return;  // it waits for the others
  uint64_t at[kLanes];
  ReadAddresses<uint32_t>(warp, i, at);
  site->shared += SharedTraffic(at, kAllLanes >> (kLanes - 8 * i->count), 16, false);
}

void Tally::AddTo(KernelCounts* counts) const {
  for (const auto& [program, sites] : sites_) {
    for (size_t j = 0; j < sites.size(); ++j) {
      const Site& site = sites[j];
      if (site.executions == 0) continue;
      const Statement& statement = program->body.statements[program->code[j].statement];
      std::string place = DescribePosition(*program->module, program->body, statement.position);
      if (place.empty()) place = "PTX line " + std::to_string(statement.line);
      Counts of;
      of.instructions[static_cast<size_t>(site.kind)] = site.executions;
      of.global = site.global;
      of.shared = site.shared;
      of.local_bytes = site.local_bytes;
      if (site.kind == Kind::kTensor) {
        // mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32
        const std::string shape(WordFromEnd(statement.opcode, 6));
        of.products[shape + "." + std::string(WordFromEnd(statement.opcode, 2))] = site.executions;
      }
      counts->total += of;
      counts->lines[place] += of;
    }
  }
}

void Counters::AddLaunch(const std::string& kernel) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++counts_[kernel].launches;
}

void Counters::Add(const std::string& kernel, const Tally& tally) {
  const std::lock_guard<std::mutex> lock(mutex_);
  tally.AddTo(&counts_[kernel]);
}

CountsByKernel Counters::Take() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(counts_, {});
}

}  // namespace ptx
}  // namespace cudasim
