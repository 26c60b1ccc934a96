// Moves, comparisons, predicates, conversions.
#include "tools/cudasim/ptx/control.h"
#include "tools/cudasim/ptx/decoder.h"

namespace cudasim {
namespace ptx {
namespace {

enum PredicateOption : uint8_t {
  kAnd = 0,
  kOr = 1,
  kXor = 2,
  kOperation = 3,
  kNegateA = 4,
  kNegateB = 8,
};

// d = a and b (or, xor), each perhaps negated.
const Instruction* CombinePredicates(Warp& warp, const Instruction* i) {
  const uint32_t a = warp.Predicate(i->a) ^ (i->option & kNegateA ? kAllLanes : 0);
  const uint32_t b = warp.Predicate(i->b) ^ (i->option & kNegateB ? kAllLanes : 0);
  const int operation = i->option & kOperation;
  SetPredicate(warp, i->d, operation == kAnd ? a & b : operation == kOr ? a | b : a ^ b);
  return i + 1;
}

uint8_t PredicateOperation(std::string_view name) {
  return name == "and" ? kAnd : name == "or" ? kOr : kXor;
}

template <typename T>
const Instruction* Select(Warp& warp, const Instruction* i) {
  const T *const a = warp.Lanes<T>(i->a), *const b = warp.Lanes<T>(i->b);
  const uint32_t lanes = warp.Predicate(i->c);
  SetLanes<T>(warp, i->d, [=](int k) { return (lanes >> k & 1) != 0 ? a[k] : b[k]; });
  return i + 1;
}

Handler SelectHandler(Width width) {
  return width == Width::k16   ? &Select<uint16_t>
         : width == Width::k32 ? &Select<uint32_t>
                               : &Select<uint64_t>;
}

template <typename T>
const Instruction* InsertBits(Warp& warp, const Instruction* i) {
  const T *const a = warp.Lanes<T>(i->a), *const b = warp.Lanes<T>(i->b);
  const uint32_t* const position = warp.Lanes<uint32_t>(i->c);
  const uint32_t* const length = warp.Lanes<uint32_t>(warp.program->slots[i->extra]);
  constexpr uint32_t kBits = 8 * sizeof(T);
  SetLanes<T>(warp, i->d, [=](int k) -> T {
    const uint32_t at = position[k] & 255, count = length[k] & 255;
    if (at >= kBits || count == 0) return b[k];
    const T ones = count >= kBits ? ~T{0} : (T{1} << count) - 1;
    return (a[k] << at & ones << at) | (b[k] & ~(ones << at));
  });
  return i + 1;
}

// Bit 4 * a + 2 * b + c of imm, for each bit.
const Instruction* LookUp(Warp& warp, const Instruction* i) {
  const uint32_t* const a = warp.Lanes<uint32_t>(i->a);
  const uint32_t* const b = warp.Lanes<uint32_t>(i->b);
  const uint32_t* const c = warp.Lanes<uint32_t>(i->c);
  const uint64_t table = i->imm;
  SetLanes<uint32_t>(warp, i->d, [=](int k) {
    uint32_t result = 0;
    for (int j = 0; j < 8; ++j) {
      const uint32_t of_a = j & 4 ? a[k] : ~a[k], of_b = j & 2 ? b[k] : ~b[k];
      const uint32_t of_c = j & 1 ? c[k] : ~c[k];
      if (table >> j & 1) result |= of_a & of_b & of_c;
    }
    return result;
  });
  return i + 1;
}

std::string BitsName(Width width) { return ".b" + std::to_string(8 << static_cast<int>(width)); }

}  // namespace

void Decoder::DecodeMove() {
  const Type type = parts_.type();
  const Operand &d = operand(0), &a = operand(1);
  if (type == Type::kPred) {
    Emit(&CombinePredicates, Write(d, Width::kPred), ReadPredicate(a), ReadPredicate(a)).option =
        a.negated ? kNegateA | kNegateB : 0;
    return;
  }
  const Width width = WidthOf(type), half = width == Width::k64 ? Width::k32 : Width::k16;
  if (d.kind == Operand::Kind::kVector) {
    const size_t count = d.elements.size();
    const Slot whole = Read(a, width);
    if (count == 2) {
      // The source may be one of the results.
      const Slot low = Scratch(half);
      EmitOperation("low" + BitsName(width), low, whole);
      EmitOperation("high" + BitsName(width), Write(d.elements[1], half), whole);
      EmitOperation("mov" + BitsName(half), Write(d.elements[0], half), low);
    } else if (count == 4 && width == Width::k64) {
      for (size_t j = 0; j < 4; ++j) {
        const Slot part = Scratch(Width::k32);
        EmitOperation(j < 2 ? "low.b64" : "high.b64", part, whole);
        EmitOperation(j % 2 == 0 ? "low.b32" : "high.b32", Write(d.elements[j], Width::k16), part);
      }
    } else {
      Fail("unpacks to a vector of this size, which is not implemented");
    }
    return;
  }
  if (a.kind == Operand::Kind::kVector) {
    const size_t count = a.elements.size();
    if (count == 2) {
      const Slot low = Read(a.elements[0], half), high = Read(a.elements[1], half);
      EmitOperation("pack" + BitsName(width), Write(d, width), low, high);
    } else if (count == 4 && width == Width::k64) {
      Slot halves[2];
      for (size_t j = 0; j < 2; ++j) {
        halves[j] = Scratch(Width::k32);
        EmitOperation("pack.b32", halves[j], Read(a.elements[2 * j], Width::k16),
                      Read(a.elements[2 * j + 1], Width::k16));
      }
      EmitOperation("pack.b64", Write(d, width), halves[0], halves[1]);
    } else {
      Fail("packs a vector of this size, which is not implemented");
    }
    return;
  }
  if (a.kind == Operand::Kind::kSpecial &&
      (a.symbol.substr(0, 6) == "%clock" || a.symbol.substr(0, 12) == "%globaltimer")) {
    const Slot time = Scratch(Width::k64);
    Emit(&Clock, time);
    EmitOperation("mov" + BitsName(width), Write(d, width), Narrow(time, Width::k64, width));
    return;
  }
  EmitOperation("mov" + BitsName(width), Write(d, width), Read(a, type));
}

// selp.f32 d, a, b, p; slct.f32.s32 d, a, b, c: a where c >= 0.
void Decoder::DecodeSelect() {
  const bool by_sign = parts_.words[0] == "slct";
  const Type type = by_sign ? parts_.type(1) : parts_.type();
  const Width width = WidthOf(type);
  const Slot a = Read(operand(1), type), b = Read(operand(2), type);
  Slot predicate;
  if (by_sign) {
    predicate = Scratch(Width::kPred);
    EmitOperation("setp.ge." + std::string(parts_.back()), predicate,
                  Read(operand(3), parts_.type()), Constant(0, Width::k32));
  } else {
    predicate = ReadPredicate(operand(3));
  }
  Emit(SelectHandler(width), Write(operand(0), width), a, b, predicate);
}

// setp.lt.f32 p, a, b; setp.lt.and.f32 p|q, a, b, c: p = (a < b) and c, q = !(a < b) and c.
void Decoder::DecodeCompare() {
  Parts parts = parts_;
  const bool flush = parts.Take("ftz");
  std::string_view combine;
  for (const std::string_view word : {"and", "or", "xor"}) {
    if (parts.Take(word)) combine = word;
  }
  const Type type = parts.type();
  const Slot a = Read(operand(1), type), b = Read(operand(2), type);
  const Operand& d = operand(0);
  const bool simple = combine.empty() && d.second < 0;
  const Slot result = simple ? Write(d, Width::kPred) : Scratch(Width::kPred);
  if (flush) Emit(&WithMode).imm = kFlushSubnormals;
  EmitOperation(parts.Join(), result, a, b);
  if (simple) return;
  const bool combined = !combine.empty();
  const Slot other = combined ? ReadPredicate(operand(3)) : Constant(1, Width::kPred);
  uint8_t option = PredicateOperation(combined ? combine : "and");
  if (combined && operand(3).negated) option |= kNegateB;
  const Slot kept = Scratch(Width::kPred);  // `other` may be a result
  if (d.second >= 0) Emit(&CombinePredicates, kept, result, other).option = option | kNegateA;
  if (d.kind != Operand::Kind::kNone) {
    Emit(&CombinePredicates, Write(d, Width::kPred), result, other).option = option;
  }
  if (d.second >= 0) Emit(&CombinePredicates, layout_.slots[d.second], kept, kept).option = kAnd;
}

// set.lt.u32.f32 d, a, b: all ones, or 1.0, where it holds.
void Decoder::DecodeSet() {
  Parts parts = parts_;
  parts.Take("ftz");
  const Type to = parts.type(1), from = parts.type();
  const Width width = WidthOf(to);
  const Slot predicate = Scratch(Width::kPred);
  EmitOperation("setp." + std::string(parts.back(2)) + "." + std::string(parts.back()), predicate,
                Read(operand(1), from), Read(operand(2), from));
  const uint64_t one = to == Type::kF32 ? 0x3f800000 : ~uint64_t{0};
  Emit(SelectHandler(width), Write(operand(0), width), Constant(one, width), Constant(0, width),
       predicate);
}

void Decoder::DecodePredicates() {
  if (parts_.type() != Type::kPred) {
    DecodeOperation();
    return;
  }
  const bool negation = parts_.words[0] == "not";
  const Operand &a = operand(1), &b = operand(negation ? 1 : 2);
  uint8_t option = PredicateOperation(negation ? "and" : parts_.words[0]);
  if (a.negated != negation) option |= kNegateA;
  if (b.negated != negation) option |= kNegateB;
  Emit(&CombinePredicates, Write(operand(0), Width::kPred), ReadPredicate(a), ReadPredicate(b))
      .option = option;
}

void Decoder::DecodeConversion() {
  Parts parts = parts_;
  const bool flush = parts.Take("ftz");
  const Type to = parts.type(1), from = parts.type();
  const auto is_small = [](Type type) { return type >= Type::kF16 && type <= Type::kTf32; };
  uint32_t mode = 0;
  if (!is_small(to)) {
    // The processor's mode decides how these are rounded.
    if (parts.Take("rz")) mode = kRoundToZero;
    if (parts.Take("rm")) mode = kRoundDown;
    if (parts.Take("rp")) mode = kRoundUp;
    parts.Take("rn");
  }
  bool saturate = false;
  if (Operations().Find(parts.Join()) == nullptr) saturate = parts.Take("sat");
  parts.Take("satfinite");
  const std::string name = parts.Join();
  const Operation* const operation = Operations().Find(name);
  if (operation == nullptr) Fail("is not implemented");
  const Slot a = Read(operand(1), operation->arguments[0], from);
  const Slot b = operation->count > 1 ? Read(operand(2), operation->arguments[1], from) : 0;
  // A register may be wider than the type: the sign fills it.
  const Operand& d = operand(0);
  const Width width =
      d.kind == Operand::Kind::kRegister ? program_->body.registers[d.reg] : operation->result;
  const bool extend = width != operation->result;
  const Slot result = extend ? Scratch(operation->result) : Write(d, width);
  if (mode != 0 || flush) Emit(&WithMode).imm = mode | (flush ? kFlushSubnormals : 0);
  Emit(operation->run, result, a, b);
  if (flush && to == Type::kF32 && from == Type::kF32) {
    Emit(&WithMode).imm = kFlushSubnormals;
    EmitOperation("mul.f32", result, result, Constant(0x3f800000, Width::k32));
  }
  if (saturate) EmitOperation("saturate." + std::string(NameOf(to)), result, result);
  if (extend) {
    const char* const sign = IsSigned(to) ? "s" : "u";
    const auto bits = [](Width w) { return std::to_string(8 << static_cast<int>(w)); };
    EmitOperation("cvt." + (sign + bits(width)) + "." + (sign + bits(operation->result)),
                  Write(d, width), result);
  }
}

void Decoder::DecodeInsertBits() {
  const Width width = WidthOf(parts_.type());
  const Slot a = Read(operand(1), width), b = Read(operand(2), width);
  const Slot position = Read(operand(3), Width::k32), length = Read(operand(4), Width::k32);
  const uint32_t extra = FurtherSlots({length});
  Emit(width == Width::k32 ? &InsertBits<uint32_t> : &InsertBits<uint64_t>,
       Write(operand(0), width), a, b, position)
      .extra = extra;
}

void Decoder::DecodeLookup() {
  const Slot a = Read(operand(1), Width::k32), b = Read(operand(2), Width::k32);
  const Slot c = Read(operand(3), Width::k32);
  Emit(&LookUp, Write(operand(0), Width::k32), a, b, c).imm = operand(4).value;
}

}  // namespace ptx
}  // namespace cudasim
