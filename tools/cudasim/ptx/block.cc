#include "tools/cudasim/ptx/block.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "tools/cudasim/ptx/control.h"
#include "tools/cudasim/ptx/detectors/counters.h"
#include "tools/cudasim/ptx/memory.h"

namespace cudasim {
namespace ptx {
namespace {

// Of each lane's local memory, where functions call others.
constexpr uint32_t kStackBytes = 16 << 10;
// Accesses to memory after which a warp yields: others may have to run for it to go on.
constexpr int64_t kPatience = 1 << 20;

constinit thread_local Block* running = nullptr;
struct RunningHere {
  explicit RunningHere(Block* block) { running = block; }
  ~RunningHere() { running = nullptr; }
};

std::string Format(uint32_t x, uint32_t y, uint32_t z) {
  return "(" + std::to_string(x) + "," + std::to_string(y) + "," + std::to_string(z) + ")";
}

std::string Format(const Size& size) { return Format(size.x, size.y, size.z); }

size_t RoundUp(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

}  // namespace

void Block::SetValue(BlockValue value, uint32_t x) {
  auto* const lanes = reinterpret_cast<uint32_t*>(block_values_.data() + (SlotOf(value) & ~3u));
  std::fill(lanes, lanes + kLanes, x);
}

void Block::SetWarpValues(const Warp& warp) {
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    const auto set = [&](WarpValue value, uint32_t x) {
      warp.Lanes<uint32_t>(SlotOf(value))[lane] = x;
    };
    const uint32_t thread = warp.number * kLanes + lane, bit = uint32_t{1} << lane;
    set(WarpValue::kTidX, thread % launch_->block.x);
    set(WarpValue::kTidY, thread / launch_->block.x % launch_->block.y);
    set(WarpValue::kTidZ, thread / launch_->block.x / launch_->block.y);
    set(WarpValue::kLaneid, lane);
    set(WarpValue::kWarpid, warp.number);
    set(WarpValue::kLanesEq, bit);
    set(WarpValue::kLanesLt, bit - 1);
    set(WarpValue::kLanesLe, bit | (bit - 1));
    set(WarpValue::kLanesGt, ~(bit | (bit - 1)));
    set(WarpValue::kLanesGe, ~(bit - 1));
  }
}

void Block::Prepare(const Launch& launch, const Settings& settings) {
  launch_ = &launch;
  settings_ = &settings;
  const Program& program = *launch.program;
  const auto threads = static_cast<size_t>(launch.block.count());
  warp_count_ = (threads + kLanes - 1) / kLanes;
  while (warps_.size() < warp_count_) warps_.push_back(std::make_unique<Warp>());

  const auto dynamic = static_cast<uint32_t>(RoundUp(program.shared_bytes, 16));
  shared_bytes_ = launch.dynamic_shared > 0 ? dynamic + static_cast<uint32_t>(launch.dynamic_shared)
                                            : program.shared_bytes;
  shared_.Reserve(shared_bytes_);
  const size_t stride =
      RoundUp(program.local_bytes + (program.calls_functions ? kStackBytes : 0), 16);
  local_.Reserve(warp_count_ * kLanes * stride);
  // Not a multiple of the cache's size, so that warps do not drive out each other's registers.
  const size_t registers = RoundUp(program.register_bytes, 64) + 64;
  registers_.Reserve(warp_count_ * registers);
  constexpr size_t kValues = 128 * static_cast<size_t>(WarpValue::kCount);
  warp_values_.Reserve(warp_count_ * kValues);
  block_values_.Reserve(128 * static_cast<size_t>(BlockValue::kCount));
  const bool same_shape = shape_ == launch.block;
  shape_ = launch.block;
  SetValue(BlockValue::kNtidX, launch.block.x);
  SetValue(BlockValue::kNtidY, launch.block.y);
  SetValue(BlockValue::kNtidZ, launch.block.z);
  SetValue(BlockValue::kNctaidX, launch.grid.x);
  SetValue(BlockValue::kNctaidY, launch.grid.y);
  SetValue(BlockValue::kNctaidZ, launch.grid.z);
  SetWorkspace(0);
  SetValue(BlockValue::kNwarpid, static_cast<uint32_t>(warp_count_));
  SetValue(BlockValue::kDynamicShared, dynamic);
  SetValue(BlockValue::kDynamicSharedBytes, static_cast<uint32_t>(launch.dynamic_shared));
  for (size_t j = 0; j < warp_count_; ++j) {
    Warp& warp = *warps_[j];
    warp.number = static_cast<uint32_t>(j);
    warp.block = this;
    warp.frames.clear();  // of calls that a fault has ended
    warp.local_memory = local_.data() + j * kLanes * stride;
    warp.local_stride = static_cast<uint32_t>(stride);
    warp.files[kRegisters] = registers_.data() + j * registers;
    warp.files[kBlockValues] = block_values_.data();
    warp.files[kWarpValues] = warp_values_.data() + j * kValues;
    if (!same_shape) SetWarpValues(warp);
  }
  order_.resize(warp_count_);
  std::iota(order_.begin(), order_.end(), 0);
  if (settings.order == Settings::Order::kReverse) std::reverse(order_.begin(), order_.end());
  const uint64_t changes = settings.changes != nullptr ? settings.changes->load() : 0;
  // Where races are sought, no access may take the way on which it is not watched.
  if (changes == 0 || changes != changes_ || settings.find_races) extents_.fill({});
  changes_ = changes;
  races_ = nullptr;
  tally_ = nullptr;
}

void Block::SetWorkspace(uint64_t address) {
  SetValue(BlockValue::kWorkspaceHigh, static_cast<uint32_t>(address >> 32));
  SetValue(BlockValue::kWorkspaceLow, static_cast<uint32_t>(address));
}

void Block::Begin(uint64_t number) {
  const Program& program = *launch_->program;
  const Size& grid = launch_->grid;
  index_ = {static_cast<uint32_t>(number % grid.x), static_cast<uint32_t>(number / grid.x % grid.y),
            static_cast<uint32_t>(number / grid.x / grid.y)};
  SetValue(BlockValue::kCtaidX, index_.x);
  SetValue(BlockValue::kCtaidY, index_.y);
  SetValue(BlockValue::kCtaidZ, index_.z);
  random_ = Random(settings_->seed + number);
  barriers_.fill({});
  running_ = static_cast<uint32_t>(warp_count_);
  // NaN in every type.
  if (shared_bytes_ > 0) std::memset(shared_.data(), 0xff, shared_bytes_);
  if (races_ != nullptr) races_->Begin(static_cast<uint32_t>(number), warp_count_, shared_bytes_);
  const auto threads = static_cast<uint32_t>(launch_->block.count());
  for (size_t j = 0; j < warp_count_; ++j) {
    Warp& warp = *warps_[j];
    const uint32_t lanes = std::min<uint32_t>(kLanes, threads - warp.number * kLanes);
    warp.live = lanes == kLanes ? kAllLanes : (uint32_t{1} << lanes) - 1;
    warp.waiting.clear();
    warp.first_waiting = kAllLanes;
    warp.stuck = warp.wanted = 0;
    warp.existing = warp.live;
    warp.copies.clear();
    warp.copy_groups.fill(0);
    warp.local = 0;
    warp.program = &program;
    warp.files[kConstants] = program.constants.data();
    warp.code = program.code.data();
    warp.resume = warp.code;
    warp.state = Warp::State::kRunning;
    warp.SetMask(warp.live);
  }
}

void Block::Turn(Warp* warp) {
  const bool random = settings_->order == Settings::Order::kRandom;
  // Lanes need not go on together.
  if (Chance(4)) {
    const auto ahead = warp->mask & static_cast<uint32_t>(random_.Below(uint64_t{1} << 32));
    if (ahead != 0 && ahead != warp->mask) {
      warp->AddWaiting({warp->NumberOf(warp->resume), warp->mask & ~ahead});
      warp->SetMask(ahead);
      if (warp->resume->run == &Meet) ++warp->resume;
    }
  }
  // Where a warp has yielded, lanes that wait may have to run for the others to go on.
  if (warp->state == Warp::State::kYielded && !warp->waiting.empty() &&
      (!random || random_.Below(2) == 0)) {
    const Group group = warp->waiting[random_.Below(warp->waiting.size())];
    const Group current{warp->NumberOf(warp->resume), warp->mask};
    std::erase_if(warp->waiting, [&](const Group& other) { return other.at == group.at; });
    warp->AddWaiting(current);
    warp->SetMask(group.mask);
    warp->resume = warp->code + group.at;
    // There they would let those at smaller instructions go first.
    if (warp->resume->run == &Meet) ++warp->resume;
  }
  turn_ = warp;
  accessing_ = nullptr;
  warp->state = Warp::State::kRunning;
  // Blocks that wait for each other spend it on looking whether the last one has come.
  const int64_t patience = launch_->cooperative ? kPatience / 64 : kPatience;
  warp->patience = random ? static_cast<int64_t>(random_.Below(32)) : patience;
  const Instruction* i = warp->resume;
  if (tally_ == nullptr) {
    while (i != nullptr) i = i->run(*warp, i);
  }
  while (i != nullptr) {
    tally_->Count(*warp, i);
    i = i->run(*warp, i);
  }
  if (warp->state == Warp::State::kDone) --running_;
}

Block* Block::Running() { return running; }

void Block::Leave(uintptr_t address, Bug bug, std::string&& text) {
  left_.address = address;
  left_.bug = bug;
  left_.text.swap(text);  // which gets an empty one: its destructor is passed over
  std::longjmp(leave_, 1);
}

void Block::FailLeft() {
  // The lane whose access of up to 16 bytes begins there or before.
  int lane = __builtin_ctz(turn_->mask);
  uint64_t least = 16;
  const auto consider = [&](int other, uint64_t at) {
    if (left_.address - at >= least) return;
    least = left_.address - at;
    lane = other;
  };
  if (accessing_ != nullptr && accessing_->run == &BeginCopy) {
    // The copy is made at the wait, when the registers may hold something else.
    for (const AsyncCopy& copy : turn_->copies) {
      consider(copy.lane, reinterpret_cast<uintptr_t>(copy.from));
    }
  } else if (accessing_ != nullptr && accessing_->run != &CallFunction) {
    for (int other : LanesOf(turn_->mask)) {
      consider(other, turn_->Lanes<uint64_t>(accessing_->a)[other] + accessing_->imm);
    }
  }
  turn_->Fail(left_.bug, accessing_, lane, std::exchange(left_.text, {}));
}

bool Block::Run(bool once) {
  const RunningHere here(this);
  // What is left has no destructors, and so nothing is leaked but what vprintf was formatting.
  if (setjmp(leave_) != 0) FailLeft();
  return TakeTurns(once);
}

bool Block::TakeTurns(bool once) {
  for (;;) {
    if (settings_->order == Settings::Order::kRandom) {
      for (size_t j = order_.size(); j > 1; --j) std::swap(order_[j - 1], order_[random_.Below(j)]);
    }
    bool progress = false;
    for (uint32_t j : order_) {
      Warp* const warp = warps_[j].get();
      if (warp->state == Warp::State::kAtBarrier || warp->state == Warp::State::kDone) continue;
      Turn(warp);
      progress = true;
    }
    if (running_ == 0) {
      if (races_ != nullptr) races_->End();
      return true;
    }
    if (!OpenBarriers() && !progress) FailDeadlock();
    if (once) return false;
  }
}

void Block::Arrive(const Warp& warp, int barrier, uint32_t threads, uint32_t votes, bool waits) {
  if (races_ != nullptr) races_->clocks().Arrive(warp, barrier, waits);
  Barrier& state = barriers_[barrier];
  ++state.arrived;
  state.expected = threads / kLanes;
  state.votes.for_it += static_cast<uint32_t>(__builtin_popcount(votes));
  state.votes.threads += static_cast<uint32_t>(__builtin_popcount(warp.mask));
}

bool Block::Opens(const Barrier& barrier) const {
  if (barrier.arrived == 0) return false;
  return barrier.arrived >= (barrier.expected != 0 ? barrier.expected : running_);
}

bool Block::OpenBarriers() {
  bool opened = false;
  for (int number = 0; number < static_cast<int>(barriers_.size()); ++number) {
    Barrier& barrier = barriers_[number];
    if (!Opens(barrier)) continue;
    if (settings_->report_exited && barrier.expected == 0 && running_ < warp_count_) {
      FailExited(number);
    }
    opened = true;
    barrier.last = barrier.votes;
    barrier.votes = {};
    barrier.arrived = 0;
    for (size_t j = 0; j < warp_count_; ++j) {
      Warp& warp = *warps_[j];
      if (warp.state == Warp::State::kAtBarrier && warp.barrier == number) {
        warp.state = Warp::State::kRunning;
        if (races_ != nullptr) races_->clocks().Leave(warp, number);
      }
    }
    if (races_ != nullptr) races_->clocks().Close(number);
  }
  return opened;
}

void Block::FailExited(int barrier) {
  const Warp *waiting = nullptr, *exited = nullptr;
  for (size_t j = 0; j < warp_count_; ++j) {
    const Warp& warp = *warps_[j];
    if (warp.state == Warp::State::kDone) exited = &warp;
    if (warp.state == Warp::State::kAtBarrier && warp.barrier == barrier) waiting = &warp;
  }
  waiting->Fail(Bug::kBarrierDivergence, waiting->resume - 1, __builtin_ctz(waiting->mask),
                "warp " + std::to_string(exited->number) + " has exited");
}

void Block::FailDeadlock() {
  const Warp* waiting = nullptr;
  std::string text = "threads wait for each other at different barriers:";
  for (size_t j = 0; j < warp_count_; ++j) {
    const Warp& warp = *warps_[j];
    if (warp.state != Warp::State::kAtBarrier) continue;
    if (waiting == nullptr) waiting = &warp;
    text += "\nwarp " + std::to_string(j) + " at barrier " + std::to_string(warp.barrier) + ", " +
            warp.program->Describe(warp.resume - 1);
  }
  waiting->Fail(Bug::kBarrierDivergence, waiting->resume - 1, __builtin_ctz(waiting->mask), text);
}

std::string Block::NameOther(uint32_t block, uint32_t thread) const {
  const auto format = [](const Size& size, uint32_t number) {
    return Format(number % size.x, number / size.x % size.y, number / size.x / size.y);
  };
  const std::string name = "thread " + format(launch_->block, thread);
  const std::string own = Format(index_), its = format(launch_->grid, block);
  return its == own ? name : name + " of block " + its;
}

std::string Block::NameThread(const Warp& warp, int lane) const {
  const auto value = [&](WarpValue which) { return warp.Lanes<uint32_t>(SlotOf(which))[lane]; };
  return "kernel " + launch_->program->name + ", block " + Format(index_) + " of " +
         Format(launch_->grid) + ", thread " +
         Format(value(WarpValue::kTidX), value(WarpValue::kTidY), value(WarpValue::kTidZ)) +
         " of " + Format(launch_->block);
}

}  // namespace ptx
}  // namespace cudasim
