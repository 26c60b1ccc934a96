// Loads, stores, atomics, copies, addresses, and what reads matrices.
#include "tools/cudasim/ptx/addresses.h"
#include "tools/cudasim/ptx/collectives.h"
#include "tools/cudasim/ptx/control.h"
#include "tools/cudasim/ptx/decoder.h"
#include "tools/cudasim/ptx/memory.h"

namespace cudasim {
namespace ptx {
namespace {

// isspacep: whether a generic address lies in the window imm.
const Instruction* IsInWindow(Warp& warp, const Instruction* i) {
  const uint64_t* const a = warp.Lanes<uint64_t>(i->a);
  uint32_t lanes = 0;
  for (int k = 0; k < kLanes; ++k) {
    lanes |= static_cast<uint32_t>((a[k] & kWindowMask) == i->imm) << k;
  }
  SetPredicate(warp, i->d, lanes);
  return i + 1;
}

int CountOf(std::string_view word) {
  return word == "v2" ? 2 : word == "v4" ? 4 : word == "v8" ? 8 : 0;
}

}  // namespace

Space Decoder::TakeSpace(Parts* parts, Space otherwise) {
  constexpr std::pair<std::string_view, Space> kSpaces[] = {{"global", Space::kGlobal},
                                                            {"const", Space::kConst},
                                                            {"shared", Space::kShared},
                                                            {"shared::cta", Space::kShared},
                                                            {"shared::cluster", Space::kShared},
                                                            {"local", Space::kLocal},
                                                            {"param", Space::kParam},
                                                            {"param::entry", Space::kParam},
                                                            {"param::func", Space::kParam}};
  for (const auto& [name, space] : kSpaces) {
    if (parts->Take(name)) return space;
  }
  return otherwise;
}

// The slot of an address without its offset.
Slot Decoder::Address(const Operand& operand, Space space, bool* wide, uint64_t* offset) {
  if (operand.kind != Operand::Kind::kAddress) Fail("needs an address");
  *offset = operand.value;
  *wide = true;
  if (operand.reg >= 0) {
    const Width width = program_->body.registers[operand.reg];
    const Slot slot = layout_.slots[operand.reg];
    *wide = width == Width::k64;
    if (*wide || (space == Space::kShared && width == Width::k32)) return slot;
    if (space == Space::kGlobal || space == Space::kGeneric) Fail("needs an address of 64 bits");
    *wide = true;
    return Narrow(slot, width, Width::k64);
  }
  if (operand.symbol.empty()) {
    *offset = 0;
    return Constant(operand.value, Width::k64);
  }
  Operand variable = operand;
  variable.value = 0;
  variable.kind = Operand::Kind::kSymbol;
  return AddressOf(variable, Width::k64);
}

std::vector<Slot> Decoder::VectorSlots(const Operand& operand, Width width, bool write) {
  if (operand.kind != Operand::Kind::kVector) Fail("needs a vector");
  std::vector<Slot> slots;
  for (const Operand& element : operand.elements) {
    slots.push_back(write ? Write(element, width) : Read(element, width));
  }
  return slots;
}

namespace {

// The size of registers in a load or store, which can exceed the type's.
Width RegisterWidth(const Body& body, const Operand& operand, Type type) {
  const Operand* one = &operand;
  if (operand.kind == Operand::Kind::kVector) {
    for (const Operand& element : operand.elements) {
      if (element.kind == Operand::Kind::kRegister) one = &element;
    }
  }
  return one->kind == Operand::Kind::kRegister ? body.registers[one->reg] : WidthOf(type);
}

}  // namespace

void Decoder::DecodeLoad() {
  Parts parts = parts_;
  Space space = TakeSpace(&parts, Space::kGeneric);
  const Type type = parts.type();
  const int count = CountOf(parts.back(1));
  const Operand& address = operand(1);
  const Width width = RegisterWidth(program_->body, operand(0), type);
  if (type == Type::kNone || width == Width::kPred) Fail("is not implemented");
  if (space == Space::kParam && !address.symbol.empty()) {
    const Place place = FindSymbol(address);
    const uint64_t at = place.value + address.value;
    if (place.in_frame) {
      space = Space::kLocal;
    } else if (count == 0) {
      if (at + BytesOf(type) > program_->parameter_bytes) Fail("reads beyond the parameters");
      Emit(ParameterHandler(type, width), Write(operand(0), width)).imm = at;
      return;
    }
  }
  bool wide;
  uint64_t offset;
  const Slot a = Address(address, space, &wide, &offset);
  const Handler run = LoadHandler(space, wide, count != 0, type, width);
  if (run == nullptr) Fail("loads into registers of another size");
  const uint32_t extra = count != 0 ? FurtherSlots(VectorSlots(operand(0), width, true)) : 0;
  Instruction& load = Emit(run, count == 0 ? Write(operand(0), width) : 0, a);
  load.imm = offset;
  load.extra = extra;
  load.count = static_cast<uint8_t>(count);
  load.option = OptionFor(space, wide);
}

void Decoder::DecodeStore() {
  Parts parts = parts_;
  Space space = TakeSpace(&parts, Space::kGeneric);
  const Type type = parts.type();
  const int count = CountOf(parts.back(1));
  const Width width = RegisterWidth(program_->body, operand(1), type);
  if (type == Type::kNone || width == Width::kPred) Fail("is not implemented");
  if (space == Space::kParam) space = Space::kLocal;  // of a call
  bool wide;
  uint64_t offset;
  const Slot a = Address(operand(0), space, &wide, &offset);
  const Handler run = StoreHandler(space, wide, count != 0, type, width);
  if (run == nullptr) Fail("stores from registers of another size");
  const uint32_t extra = count != 0 ? FurtherSlots(VectorSlots(operand(1), width, false)) : 0;
  const Slot value = count == 0 ? Read(operand(1), width, type) : 0;
  Instruction& store = Emit(run, value, a);
  store.imm = offset;
  store.extra = extra;
  store.count = static_cast<uint8_t>(count);
  store.option = OptionFor(space, wide);
}

// atom.global.add.u64 d, [a], b; atom.cas.b32 d, [a], b, c; red without d.
void Decoder::DecodeAtomic() {
  Parts parts = parts_;
  const Space space = TakeSpace(&parts, Space::kGeneric);
  const bool has_result = parts.words[0] == "atom";
  parts.Take("noftz");
  // NVIDIA's headers have them before or after the operation.
  for (const std::string_view word :
       {"relaxed", "acquire", "release", "acq_rel", "cta", "cluster", "gpu", "sys"}) {
    parts.Take(word);
  }
  const Type type = parts.type();
  const Handler run = AtomicHandler(parts.back(1), type);
  if (run == nullptr) Fail("is not implemented");
  const Width width = WidthOf(type);
  bool wide;
  uint64_t offset;
  const size_t first = has_result ? 1 : 0;
  const Slot a = Address(operand(first), space, &wide, &offset);
  const Slot b = Read(operand(first + 1), width, type);
  const Slot c =
      statement_->operands.size() > first + 2 ? Read(operand(first + 2), width, type) : b;
  Instruction& atomic = Emit(run, has_result ? Write(operand(0), width) : 0, a, b, c);
  atomic.imm = offset;
  atomic.count = has_result;
  atomic.option = OptionFor(space, wide);
}

// cp.async.cg.shared.global [a], [b], 16, c; cp.async.commit_group; cp.async.wait_group 1.
void Decoder::DecodeAsyncCopy() {
  if (!parts_.Has("async") || parts_.Has("bulk") || parts_.Has("mbarrier")) {
    Fail("is not implemented");
  }
  if (parts_.Has("commit_group")) {
    Emit(&CommitCopies);
  } else if (parts_.Has("wait_all")) {
    Emit(&CommitCopies);
    Emit(&WaitForCopies).imm = 0;
  } else if (parts_.Has("wait_group")) {
    Emit(&WaitForCopies).imm = operand(0).value;
  } else {
    bool wide;
    uint64_t to_offset, from_offset;
    Slot to = Address(operand(0), Space::kShared, &wide, &to_offset);
    if (wide) to = Narrow(to, Width::k64, Width::k32);
    const Slot from = Address(operand(1), Space::kGlobal, &wide, &from_offset);
    const uint64_t bytes = operand(2).value;
    if (bytes != 4 && bytes != 8 && bytes != 16) Fail("copies neither 4, 8 nor 16 bytes");
    const bool partial = statement_->operands.size() > 3;
    if (partial && operand(3).kind == Operand::Kind::kRegister &&
        program_->body.registers[operand(3).reg] == Width::kPred) {
      Fail("with a predicate is not implemented");
    }
    const Slot present = partial ? Read(operand(3), Width::k32) : Constant(bytes, Width::k32);
    Instruction& copy = Emit(&BeginCopy, to, from, present);
    copy.imm = from_offset << 32 | static_cast<uint32_t>(to_offset);
    copy.count = static_cast<uint8_t>(bytes);
  }
}

// cvta.to.shared.u64 d, a: from generic; cvta.shared.u64 d, a: to generic.
void Decoder::DecodeConvertAddress() {
  Parts parts = parts_;
  const bool from_generic = parts.Take("to");
  const uint64_t window = WindowOf(TakeSpace(&parts, Space::kGlobal));
  if (parts.type() != Type::kU64) Fail("of 32 bits is not implemented");
  const Slot a = Read(operand(1), Width::k64), d = Write(operand(0), Width::k64);
  if (window == 0) {
    EmitOperation("mov.b64", d, a);
  } else {
    EmitOperation(from_generic ? "sub.s64" : "add.s64", d, a, Constant(window, Width::k64));
  }
}

void Decoder::DecodeIsSpace() {
  Parts parts = parts_;
  const uint64_t window = WindowOf(TakeSpace(&parts, Space::kGlobal));
  const Slot a = Read(operand(1), Width::k64);
  Emit(&IsInWindow, Write(operand(0), Width::kPred), a).imm = window;
}

// ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {a, b, c, d}, [address]
void Decoder::DecodeLoadMatrices() {
  const int count = parts_.Has("x4") ? 4 : parts_.Has("x2") ? 2 : parts_.Has("x1") ? 1 : 0;
  if (count == 0 || !parts_.Has("m8n8") || parts_.type() != Type::kB16) Fail("is not implemented");
  bool wide;
  uint64_t offset;
  Slot a = Address(operand(1), Space::kShared, &wide, &offset);
  if (wide) a = Narrow(a, Width::k64, Width::k32);
  const uint32_t extra = FurtherSlots(VectorSlots(operand(0), Width::k32, true));
  Instruction& load = Emit(&LoadMatrices, 0, a);
  load.imm = offset;
  load.extra = extra;
  load.count = static_cast<uint8_t>(count);
  load.option = parts_.Has("trans") ? 1 : 0;
}

// mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 d, a, b, c
void Decoder::DecodeMatrixProduct() {
  const MatrixShape* const shape =
      parts_.words.size() == 10 && parts_.Has("row") && parts_.Has("col")
          ? FindMatrixShape(parts_.words[3], parts_.type(3), parts_.type(2), parts_.type(1),
                            parts_.type(0))
          : nullptr;
  if (shape == nullptr) Fail("is not implemented");
  const bool is_double = shape->d == Type::kF64;
  const Width width = is_double ? Width::k64 : Width::k32;
  std::vector<Slot> slots;
  const int registers[] = {shape->registers_d, shape->registers_a, shape->registers_b,
                           shape->registers_c};
  for (size_t j = 0; j < 4; ++j) {
    const std::vector<Slot> more = VectorSlots(operand(j), width, j == 0);
    if (static_cast<int>(more.size()) != registers[j]) Fail("has vectors of other sizes");
    slots.insert(slots.end(), more.begin(), more.end());
  }
  if (IsFloat(shape->d) && !is_double && matrix_sums == MatrixSums::kFused) {
    program_->approximates = true;
  }
  const uint32_t extra = FurtherSlots(slots);
  Instruction& product = Emit(MatrixHandler(*shape));
  product.data = shape;
  product.extra = extra;
}

}  // namespace ptx
}  // namespace cudasim
