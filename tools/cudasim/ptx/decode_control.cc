// Branches, calls, barriers, and what lanes do together.
#include "tools/cudasim/ptx/collectives.h"
#include "tools/cudasim/ptx/control.h"
#include "tools/cudasim/ptx/decoder.h"

namespace cudasim {
namespace ptx {

// Whether lanes that go there do nothing but return: then they leave at once, so that they are not
// waited for.
bool Decoder::ReturnsAt(int statement) const {
  const std::vector<Statement>& statements = program_->body.statements;
  if (statement >= static_cast<int>(statements.size())) return true;
  return statements[statement].guard < 0 && statements[statement].opcode == "ret";
}

void Decoder::DecodeBranch() {
  const auto label = program_->body.labels.find(operand(0).symbol);
  if (label == program_->body.labels.end()) Fail("goes to a label that is not known");
  const int target = label->second;
  const bool guarded = statement_->guard >= 0;
  const Slot guard = guarded ? layout_.slots[statement_->guard] : 0;
  const bool negated = statement_->guard_negated;
  if (guarded && ReturnsAt(target)) {
    Emit(&ReturnIf, 0, guard).option = negated;
    return;
  }
  if (guarded && ReturnsAt(number_ + 1)) Emit(&ReturnIf, 0, guard).option = !negated;
  branches_.push_back({static_cast<uint32_t>(program_->code.size()), target});
  if (guarded && !ReturnsAt(number_ + 1)) {
    Emit(&BranchIf, 0, guard).option = negated;
  } else {
    Emit(&Branch);
  }
}

void Decoder::DecodeBranchByIndex() {
  const auto targets = program_->body.branch_targets.find(operand(1).symbol);
  if (targets == program_->body.branch_targets.end()) Fail("has no list of targets");
  const Slot index = Read(operand(0), Width::k32);
  tables_.push_back({static_cast<uint32_t>(program_->code.size()), targets->second});
  Emit(&BranchByIndex, 0, index);
}

void Decoder::DecodeReturn() {
  if (statement_->guard >= 0) {
    if (parts_.words[0] == "exit" && !program_->function->entry) {
      Fail("with a predicate in a function is not implemented");
    }
    Emit(&ReturnIf, 0, layout_.slots[statement_->guard]).option = statement_->guard_negated;
  } else {
    Emit(parts_.words[0] == "exit" ? &Exit : &Return);
  }
}

// call.uni (result), function, (argument, ...); each may be missing but the function.
void Decoder::DecodeCall() {
  size_t next = 0;
  const Operand none;
  const auto take_list = [&]() -> const Operand& {
    if (next >= statement_->operands.size()) return none;
    const Operand& list = operand(next);
    return list.kind == Operand::Kind::kVector ? (++next, list) : none;
  };
  const Operand& results = take_list();
  const Operand& target = operand(next++);
  const Operand& arguments = take_list();

  auto call = std::make_unique<Call>();
  Slot address = 0;
  const Program* callee = nullptr;
  if (target.kind == Operand::Kind::kRegister) {
    address = Read(target, Width::k64);
  } else if (call->builtin = FindBuiltin(target.symbol); call->builtin == nullptr) {
    callee = image_->FindFunction(target.symbol);
    if (callee == nullptr) Fail("calls " + std::string(target.symbol) + ", which is not known");
  }
  call->callee = callee;
  program_->approximates |= callee != nullptr && callee->approximates;
  program_->calls_functions |= call->builtin == nullptr;

  // The callee's frame begins with its parameters, then its results, in the order and with the
  // alignment of their declarations; those here must have the same sizes.
  uint32_t end = 0;
  const auto pass = [&](const Operand& list, std::vector<Passed>* passed) {
    for (const Operand& each : list.elements) {
      if (each.variable < 0) Fail("passes something other than a .param variable");
      const Variable* const variable = &program_->body.variables[each.variable];
      end = (end + variable->alignment - 1) / variable->alignment * variable->alignment;
      passed->push_back({static_cast<uint32_t>(FindSymbol(each).value), end,
                         static_cast<uint32_t>(variable->bytes)});
      end += static_cast<uint32_t>(variable->bytes);
    }
  };
  pass(arguments, &call->arguments);
  pass(results, &call->results);
  program_->calls.push_back(std::move(call));
  Emit(&CallFunction, 0, address).data = program_->calls.back().get();
}

// bar.sync a, b; barrier.sync.aligned a; bar.warp.sync mask; bar.red.popc.u32 d, a, b, p.
void Decoder::DecodeBarrier() {
  if (parts_.Has("cluster")) Fail("is not implemented");
  if (parts_.Has("warp")) {
    Emit(&SynchronizeWarp, 0, 0, 0, Read(operand(0), Width::k32));
    return;
  }
  const size_t count = statement_->operands.size();
  const Slot all = Constant(0, Width::k32);
  if (parts_.Has("red")) {
    const Slot barrier = Read(operand(1), Width::k32);
    const Slot threads = count > 3 ? Read(operand(2), Width::k32) : all;
    const Operand& vote = operand(count - 1);
    Emit(&Barrier, 0, barrier, threads, ReadPredicate(vote)).option = vote.negated ? 2 : 1;
    const bool counts = parts_.Has("popc");
    Emit(&BarrierVotes, Write(operand(0), counts ? Width::k32 : Width::kPred), barrier).option =
        counts              ? 0
        : parts_.Has("and") ? 1
                            : 2;
    return;
  }
  const Slot barrier = count > 0 ? Read(operand(0), Width::k32) : all;
  const Slot threads = count > 1 ? Read(operand(1), Width::k32) : all;
  if (parts_.Has("arrive")) {
    Emit(&ArriveAtBarrier, 0, barrier, threads);
  } else if (parts_.Has("sync")) {
    Emit(&Barrier, 0, barrier, threads);
  } else {
    Fail("is not implemented");
  }
}

void Decoder::DecodeFence() { Emit(&Fence).option = parts_.Has("cta") ? 1 : 0; }
void Decoder::DecodeTrap() { Emit(&Trap); }
void Decoder::DecodeSleep() { Emit(&Sleep); }
void Decoder::DecodeNothing() { Emit(&NoOperation); }

// shfl.sync.bfly.b32 d|p, a, b, c, mask
void Decoder::DecodeShuffle() {
  const Handler run = parts_.Has("sync") ? ShuffleHandler(parts_.back(1)) : nullptr;
  if (run == nullptr) Fail("is not implemented");
  const Operand &d = operand(0), &b = operand(2), &c = operand(3);
  const Slot source = Read(operand(1), Width::k32);
  const Slot distance = Read(b, Width::k32), clamp = Read(c, Width::k32);
  std::vector<Slot> slots = {Read(operand(4), Width::k32)};
  if (d.second >= 0) slots.push_back(layout_.slots[d.second]);
  const uint32_t extra = FurtherSlots(slots);
  Instruction& shuffle = Emit(run, Write(d, Width::k32), source, distance, clamp);
  shuffle.extra = extra;
  shuffle.count = static_cast<uint8_t>(slots.size());
}

// vote.sync.ballot.b32 d, p, mask; vote.sync.all.pred d, p, mask
void Decoder::DecodeVote() {
  Parts parts = parts_;  // NVIDIA's libraries have .sync before or after the mode
  const Handler run = parts.Take("sync") ? VoteHandler(parts.back(1)) : nullptr;
  if (run == nullptr) Fail("is not implemented");
  const Slot mask = Read(operand(2), Width::k32);
  const Width width = parts.back(1) == "ballot" ? Width::k32 : Width::kPred;
  Emit(run, Write(operand(0), width), ReadPredicate(operand(1)), 0, mask).option =
      operand(1).negated;
}

// match.any.sync.b32 d, a, mask; match.all.sync.b64 d|p, a, mask
void Decoder::DecodeMatch() {
  const Type type = parts_.type();
  const Slot a = Read(operand(1), WidthOf(type)), mask = Read(operand(2), Width::k32);
  const Operand& d = operand(0);
  const uint32_t extra = d.second >= 0 ? FurtherSlots({layout_.slots[d.second]}) : 0;
  Instruction& match =
      Emit(MatchHandler(parts_.Has("all") ? "all" : "any", type), Write(d, Width::k32), a, 0, mask);
  match.extra = extra;
  match.count = d.second >= 0;
}

// redux.sync.add.s32 d, a, mask
void Decoder::DecodeReduce() {
  const Handler run = ReduceHandler(parts_.back(1), parts_.type());
  if (run == nullptr) Fail("is not implemented");
  const Slot a = Read(operand(1), Width::k32), mask = Read(operand(2), Width::k32);
  Emit(run, Write(operand(0), Width::k32), a, 0, mask);
}

void Decoder::DecodeActiveMask() { Emit(&ActiveMask, Write(operand(0), Width::k32)); }

// elect.sync d|p, mask
void Decoder::DecodeElect() {
  const Operand& d = operand(0);
  const Slot mask = Read(operand(1), Width::k32);
  if (d.second < 0) Fail("needs a predicate");
  const uint32_t extra = FurtherSlots({layout_.slots[d.second]});
  Emit(&Elect, Write(d, Width::k32), 0, 0, mask).extra = extra;
}

}  // namespace ptx
}  // namespace cudasim
