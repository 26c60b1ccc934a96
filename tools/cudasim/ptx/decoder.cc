#include "tools/cudasim/ptx/decoder.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "tools/cudasim/ptx/control.h"
#include "tools/cudasim/ptx/pointers.h"

namespace cudasim {
namespace ptx {
namespace {

constexpr uint32_t kScratchSlots = 16;

uint32_t RoundUp(uint64_t bytes, uint64_t to) {
  return static_cast<uint32_t>((bytes + to - 1) / to * to);
}

std::vector<std::string_view> Split(std::string_view opcode) {
  std::vector<std::string_view> words;
  for (size_t begin = 0; begin <= opcode.size();) {
    const size_t end = std::min(opcode.find('.', begin), opcode.size());
    words.push_back(opcode.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

}  // namespace

void Decode(Image* image, Program* program) {
  try {
    Decoder(image, program).Run();
  } catch (const std::out_of_range&) {
    throw Unsupported("function " + program->name + " branches to a label that it does not have");
  }
}

bool Decoder::Parts::Has(std::string_view word) const {
  return std::find(words.begin(), words.end(), word) != words.end();
}

bool Decoder::Parts::Take(std::string_view word) {
  const auto found = std::find(words.begin(), words.end(), word);
  if (found == words.end()) return false;
  words.erase(found);
  return true;
}

std::string Decoder::Parts::Join() const {
  std::string text;
  for (const std::string_view word : words) {
    if (!text.empty()) text += '.';
    text += word;
  }
  return text;
}

std::string_view Decoder::Parts::back(size_t from_end) const {
  return from_end < words.size() ? words[words.size() - 1 - from_end] : std::string_view();
}

void Decoder::Run() {
  Program& program = *program_;
  program.body = ParseBody(*program.function);
  layout_ = PlaceRegisters(program.body);
  program.register_bytes = layout_.bytes + kScratchSlots * 256;
  PlaceParameters();
  PlaceVariables();
  FoldConstants();
  const std::vector<bool> leaders = FindLeaders(program.body);
  for (size_t j = 0; j < program.body.statements.size(); ++j) {
    number_ = static_cast<int>(j);
    starts_.push_back(static_cast<uint32_t>(program.code.size()));
    statement_ = &program.body.statements[j];
    if (leaders[j]) Emit(&Meet);
    if (!folded_[j]) DecodeStatement();
  }
  starts_.push_back(static_cast<uint32_t>(program.code.size()));
  statement_ = nullptr;
  Emit(&Meet);
  Emit(&Return);
  LinkBranches();
  if (program.function->entry) program.pointers = FindPointers(program);
  auto* const constants = program.constants.Reserve(constant_bytes_.size());
  if (!constant_bytes_.empty()) {
    std::memcpy(constants, constant_bytes_.data(), constant_bytes_.size());
  }
}

void Decoder::PlaceParameters() {
  Program& program = *program_;
  program.parameters = program.function->parameters;
  uint64_t end = 0;
  const auto place = [&](const Variable& variable, bool in_frame) {
    end = RoundUp(end, variable.alignment);
    parameters_[variable.name] = {in_frame ? Space::kLocal : Space::kParam, end, in_frame};
    end += variable.bytes;
    return static_cast<uint32_t>(end - variable.bytes);
  };
  const bool entry = program.function->entry;
  for (const Variable& parameter : program.parameters) {
    program.parameter_offsets.push_back(place(parameter, !entry));
  }
  if (entry) {
    program.parameter_bytes = static_cast<uint32_t>(end);
    return;
  }
  for (const Variable& result : program.function->results) {
    program.result_offsets.push_back(place(result, true));
  }
  program.local_bytes = static_cast<uint32_t>(end);
}

void Decoder::PlaceVariables() {
  Program& program = *program_;
  uint32_t shared = image_->shared_bytes();
  for (const Variable& variable : program.body.variables) {
    if (variable.space == Space::kShared) {
      shared = RoundUp(shared, variable.alignment);
      variables_.push_back({Space::kShared, shared});
      shared += static_cast<uint32_t>(variable.bytes);
    } else {
      program.local_bytes = RoundUp(program.local_bytes, variable.alignment);
      variables_.push_back({Space::kLocal, program.local_bytes, true});
      program.local_bytes += static_cast<uint32_t>(variable.bytes);
    }
  }
  program.shared_bytes = shared;
  if (!program.function->entry && shared > image_->shared_bytes()) {
    throw Unsupported("function " + program.name +
                      ": shared variables within functions are not implemented");
  }
}

// A register that only ever holds a constant, or a value such as %tid.x, lies where that does.
void Decoder::FoldConstants() {
  const Body& body = program_->body;
  const std::vector<int> definitions = SoleDefinitions(body);
  folded_.assign(body.statements.size(), false);
  for (size_t reg = 0; reg < definitions.size(); ++reg) {
    if (definitions[reg] < 0) continue;
    const Statement& statement = body.statements[definitions[reg]];
    if (BaseOpcode(statement) != "mov" || statement.operands[0].kind != Operand::Kind::kRegister) {
      continue;
    }
    const Operand& source = statement.operands[1];
    const bool is_index = source.kind == Operand::Kind::kSpecial &&
                          body.registers[reg] == Width::k32 &&
                          source.symbol.find("id.") != std::string_view::npos;
    if (source.kind != Operand::Kind::kImmediate && !is_index) continue;
    statement_ = &statement;
    const std::string_view type = statement.opcode.substr(statement.opcode.rfind('.') + 1);
    layout_.slots[reg] = Read(source, body.registers[reg], TypeNamed(type));
    folded_[definitions[reg]] = true;
  }
}

void Decoder::DecodeStatement() {
  parts_ = {Split(statement_->opcode)};
  scratch_used_ = 0;
  if (parts_.Has("approx")) program_->approximates = true;
  if (statement_->guard >= 0) {
    DecodeGuarded();
    return;
  }
  if (const Method method = FindMethod(parts_.words[0]); method != nullptr) {
    (this->*method)();
  } else {
    DecodeOperation();
  }
}

void Decoder::DecodeGuarded() {
  const std::string_view opcode = parts_.words[0];
  const Method method = FindMethod(opcode);
  const Slot guard = layout_.slots[statement_->guard];
  const bool negated = statement_->guard_negated;
  if (opcode == "bra" || opcode == "ret" || opcode == "exit") {
    (this->*method)();  // by itself
  } else if (opcode == "call" || opcode == "bar" || opcode == "barrier" || opcode == "brx" ||
             opcode == "nanosleep") {
    // What may wait is jumped over rather than guarded.
    branches_.push_back({static_cast<uint32_t>(program_->code.size()), number_ + 1});
    Emit(&BranchIf, 0, guard).option = negated ? 0 : 1;
    (this->*method)();
  } else {
    const size_t at = program_->code.size();
    Emit(&Guard, 0, guard).option = negated ? 1 : 0;
    if (method != nullptr) {
      (this->*method)();
    } else {
      DecodeOperation();
    }
    program_->code[at].imm = program_->code.size() - at - 1;
  }
}

// Arithmetic by the table: "add.rz.ftz.sat.f32 d, a, b".
void Decoder::DecodeOperation() {
  Parts parts = parts_;
  bool flush = false, saturate = false;
  uint32_t mode = 0;
  if (Operations().Find(parts.Join()) == nullptr) {
    flush = parts.Take("ftz");
    saturate = parts.Take("sat");
    if (parts.Take("rz")) mode = kRoundToZero;
    if (parts.Take("rm")) mode = kRoundDown;
    if (parts.Take("rp")) mode = kRoundUp;
    parts.Take("rn");
  }
  const std::string name = parts.Join();
  const Operation* const operation = Operations().Find(name);
  if (operation == nullptr) Fail("is not implemented");
  if (statement_->operands.size() != static_cast<size_t>(operation->count) + 1) {
    Fail("has another number of operands");
  }
  Slot sources[3] = {};
  for (int j = 0; j < operation->count; ++j) {
    const Width width = operation->arguments[j];
    const bool is_value = WidthOf(parts.type()) == width;
    sources[j] = Read(operand(j + 1), width, is_value ? parts.type() : Type::kNone);
  }
  const Slot d = Write(operand(0), operation->result);
  const std::string_view opcode = parts.words[0];
  const bool moves = opcode == "abs" || opcode == "neg" || opcode == "min" || opcode == "max";
  if (mode != 0 || (flush && !moves)) {
    Emit(&WithMode).imm = mode | (flush ? kFlushSubnormals : 0);
  }
  Emit(operation->run, d, sources[0], sources[1], sources[2]);
  if (flush && moves) {
    Emit(&WithMode).imm = kFlushSubnormals;
    EmitOperation("mul.f32", d, d, Constant(0x3f800000, Width::k32));
  }
  if (saturate) EmitOperation("saturate." + std::string(parts.back()), d, d);
}

void Decoder::LinkBranches() {
  Program& program = *program_;
  const auto at = [&](int statement) { return program.code.data() + starts_[statement]; };
  for (const Branching& branch : branches_)
    program.code[branch.instruction].next = at(branch.target);
  for (const Table& table : tables_) {
    std::vector<const Instruction*> targets;
    for (const std::string_view label : table.labels) {
      targets.push_back(at(program.body.labels.at(label)));
    }
    program.tables.push_back(std::make_unique<std::vector<const Instruction*>>(std::move(targets)));
    program.code[table.instruction].data = program.tables.back().get();
  }
}

void Decoder::Fail(const std::string& message) const {
  std::string text = "function " + program_->name + ", ";
  const std::string position =
      DescribePosition(*program_->module, program_->body, statement_->position);
  if (!position.empty()) text += position + ", ";
  throw Unsupported(text + "PTX line " + std::to_string(statement_->line) + ": " +
                    std::string(statement_->opcode) + " " + message);
}

const Operand& Decoder::operand(size_t index) const {
  if (index >= statement_->operands.size()) Fail("has too few operands");
  return statement_->operands[index];
}

Instruction& Decoder::Emit(Handler run, Slot d, Slot a, Slot b, Slot c) {
  Instruction& instruction = program_->code.emplace_back();
  instruction.run = run;
  instruction.d = d;
  instruction.a = a;
  instruction.b = b;
  instruction.c = c;
  instruction.statement = statement_ != nullptr ? number_ : -1;
  instruction.access = static_cast<uint16_t>(program_->code.size());
  return instruction;
}

void Decoder::EmitOperation(std::string_view name, Slot d, Slot a, Slot b, Slot c) {
  const Operation* const operation = Operations().Find(name);
  if (operation == nullptr) Fail("needs " + std::string(name) + ", which is not implemented");
  Emit(operation->run, d, a, b, c);
}

Slot Decoder::Read(const Operand& operand, Width width, Type type) {
  switch (operand.kind) {
    case Operand::Kind::kRegister: {
      const Width own = program_->body.registers[operand.reg];
      return Narrow(layout_.slots[operand.reg], own, width);
    }
    case Operand::Kind::kImmediate: {
      uint64_t value = operand.value;
      if (operand.literal == Operand::Literal::kF64 && type == Type::kF32) {
        value = std::bit_cast<uint32_t>(static_cast<float>(std::bit_cast<double>(value)));
      } else if (operand.literal == Operand::Literal::kF32 && type == Type::kF64) {
        value = std::bit_cast<uint64_t>(
            static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(value))));
      }
      return Constant(value, width);
    }
    case Operand::Kind::kSpecial:
      return Narrow(Special(operand), Width::k32, width);
    case Operand::Kind::kSymbol:
      return AddressOf(operand, width);
    default:
      Fail("has an operand of another kind");
  }
}

// The lower bits of a register; zeros above a smaller one.
Slot Decoder::Narrow(Slot from, Width own, Width wanted) {
  if (own == wanted) return from;
  if (own == Width::kPred || wanted == Width::kPred) Fail("mixes predicates and values");
  const auto name = [](Width width) { return ".u" + std::to_string(8 << static_cast<int>(width)); };
  const Slot narrow = Scratch(wanted);
  EmitOperation("cvt" + name(wanted) + name(own), narrow, from);
  return narrow;
}

Slot Decoder::Write(const Operand& operand, Width width) {
  if (operand.kind == Operand::Kind::kNone) return Scratch(width);
  if (operand.kind != Operand::Kind::kRegister) Fail("has a result that is no register");
  if (program_->body.registers[operand.reg] != width) Fail("has a result of another size");
  return layout_.slots[operand.reg];
}

Slot Decoder::ReadPredicate(const Operand& operand) {
  if (operand.kind == Operand::Kind::kImmediate) return Constant(operand.value, Width::kPred);
  if (operand.kind != Operand::Kind::kRegister ||
      program_->body.registers[operand.reg] != Width::kPred) {
    Fail("needs a predicate");
  }
  return layout_.slots[operand.reg];
}

Slot Decoder::Constant(uint64_t value, Width width) {
  if (width == Width::kPred) value = value != 0 ? ~uint64_t{0} : 0;
  if (width == Width::k16) value &= 0xffff;
  if (width == Width::k32) value &= 0xffffffff;
  const auto [found, is_new] = constants_.try_emplace({value, width});
  if (!is_new) return found->second;
  const size_t at = (constant_bytes_.size() + 63) / 64 * 64;
  found->second = MakeSlot(kConstants, at);
  if (width == Width::kPred) {
    constant_bytes_.resize(at + 4);
    std::memcpy(constant_bytes_.data() + at, &value, 4);
    return found->second;
  }
  const size_t bytes = LaneBytes(width) / kLanes;
  constant_bytes_.resize(at + LaneBytes(width));
  for (size_t lane = 0; lane < kLanes; ++lane) {
    std::memcpy(constant_bytes_.data() + at + lane * bytes, &value, bytes);
  }
  return found->second;
}

Slot Decoder::Scratch(Width) {
  if (scratch_used_ == kScratchSlots) Fail("needs too many intermediate values");
  return MakeSlot(kRegisters, layout_.bytes + 256 * scratch_used_++);
}

uint32_t Decoder::FurtherSlots(const std::vector<Slot>& slots) {
  const auto first = static_cast<uint32_t>(program_->slots.size());
  program_->slots.insert(program_->slots.end(), slots.begin(), slots.end());
  return first;
}

Decoder::Place Decoder::FindSymbol(const Operand& operand) {
  if (operand.variable >= 0) return variables_[operand.variable];
  const auto parameter = parameters_.find(operand.symbol);
  if (parameter != parameters_.end()) return parameter->second;
  try {
    const Image::Symbol symbol = image_->Resolve(operand.symbol);
    return {symbol.space, symbol.value, false, symbol.dynamic_shared, symbol.function != nullptr};
  } catch (const std::out_of_range& error) {
    Fail(std::string("refers to a variable or function that is not known: ") + error.what());
  }
}

// A variable's address within its space.
Slot Decoder::AddressOf(const Operand& operand, Width width) {
  const Place place = FindSymbol(operand);
  if (place.in_frame) {
    const Slot address = Scratch(Width::k64);
    Emit(&FrameAddress, address).imm = place.value + operand.value;
    return Narrow(address, Width::k64, width);
  }
  if (!place.dynamic_shared) return Constant(place.value + operand.value, width);
  Slot address = SlotOf(BlockValue::kDynamicShared);
  if (operand.value != 0) {
    const Slot sum = Scratch(Width::k32);
    EmitOperation("add.u32", sum, address, Constant(operand.value, Width::k32));
    address = sum;
  }
  return Narrow(address, Width::k32, width);
}

Slot Decoder::Special(const Operand& operand) {
  static const std::map<std::string_view, Slot> specials = {
      {"%tid.x", SlotOf(WarpValue::kTidX)},
      {"%tid.y", SlotOf(WarpValue::kTidY)},
      {"%tid.z", SlotOf(WarpValue::kTidZ)},
      {"%laneid", SlotOf(WarpValue::kLaneid)},
      {"%warpid", SlotOf(WarpValue::kWarpid)},
      {"%lanemask_eq", SlotOf(WarpValue::kLanesEq)},
      {"%lanemask_lt", SlotOf(WarpValue::kLanesLt)},
      {"%lanemask_le", SlotOf(WarpValue::kLanesLe)},
      {"%lanemask_gt", SlotOf(WarpValue::kLanesGt)},
      {"%lanemask_ge", SlotOf(WarpValue::kLanesGe)},
      {"%ntid.x", SlotOf(BlockValue::kNtidX)},
      {"%ntid.y", SlotOf(BlockValue::kNtidY)},
      {"%ntid.z", SlotOf(BlockValue::kNtidZ)},
      {"%ctaid.x", SlotOf(BlockValue::kCtaidX)},
      {"%ctaid.y", SlotOf(BlockValue::kCtaidY)},
      {"%ctaid.z", SlotOf(BlockValue::kCtaidZ)},
      {"%nctaid.x", SlotOf(BlockValue::kNctaidX)},
      {"%nctaid.y", SlotOf(BlockValue::kNctaidY)},
      {"%nctaid.z", SlotOf(BlockValue::kNctaidZ)},
      {"%nwarpid", SlotOf(BlockValue::kNwarpid)},
      // As cooperative groups expect it of the driver.
      {"%envreg1", SlotOf(BlockValue::kWorkspaceHigh)},
      {"%envreg2", SlotOf(BlockValue::kWorkspaceLow)},
      {"%dynamic_smem_size", SlotOf(BlockValue::kDynamicSharedBytes)},
  };
  if (const auto found = specials.find(operand.symbol); found != specials.end()) {
    return found->second;
  }
  if (operand.symbol == "%gridid" || operand.symbol == "%smid") {
    return Constant(0, Width::k32);
  }
  // What a driver puts there, PTX leaves open: here a number from outside.
  if (operand.symbol == "%envreg0") {
    const char* const number = std::getenv("CUDASIM_ENVREG0");
    return Constant(number == nullptr ? 0 : std::strtoul(number, nullptr, 10), Width::k32);
  }
  if (operand.symbol == "WARP_SZ") return Constant(kLanes, Width::k32);
  Fail("uses " + std::string(operand.symbol) + ", which is not implemented");
}

Decoder::Method Decoder::FindMethod(std::string_view opcode) const {
  static const std::map<std::string_view, Method> methods = {
      {"mov", &Decoder::DecodeMove},
      {"selp", &Decoder::DecodeSelect},
      {"slct", &Decoder::DecodeSelect},
      {"setp", &Decoder::DecodeCompare},
      {"set", &Decoder::DecodeSet},
      {"and", &Decoder::DecodePredicates},
      {"or", &Decoder::DecodePredicates},
      {"xor", &Decoder::DecodePredicates},
      {"not", &Decoder::DecodePredicates},
      {"cvt", &Decoder::DecodeConversion},
      {"bfi", &Decoder::DecodeInsertBits},
      {"lop3", &Decoder::DecodeLookup},
      {"ld", &Decoder::DecodeLoad},
      {"ldu", &Decoder::DecodeLoad},
      {"st", &Decoder::DecodeStore},
      {"atom", &Decoder::DecodeAtomic},
      {"red", &Decoder::DecodeAtomic},
      {"cp", &Decoder::DecodeAsyncCopy},
      {"cvta", &Decoder::DecodeConvertAddress},
      {"isspacep", &Decoder::DecodeIsSpace},
      {"ldmatrix", &Decoder::DecodeLoadMatrices},
      {"mma", &Decoder::DecodeMatrixProduct},
      {"bra", &Decoder::DecodeBranch},
      {"brx", &Decoder::DecodeBranchByIndex},
      {"call", &Decoder::DecodeCall},
      {"ret", &Decoder::DecodeReturn},
      {"exit", &Decoder::DecodeReturn},
      {"bar", &Decoder::DecodeBarrier},
      {"barrier", &Decoder::DecodeBarrier},
      {"membar", &Decoder::DecodeFence},
      {"fence", &Decoder::DecodeFence},
      {"trap", &Decoder::DecodeTrap},
      {"brkpt", &Decoder::DecodeTrap},
      {"nanosleep", &Decoder::DecodeSleep},
      {"prefetch", &Decoder::DecodeNothing},
      {"prefetchu", &Decoder::DecodeNothing},
      {"discard", &Decoder::DecodeNothing},
      {"applypriority", &Decoder::DecodeNothing},
      {"pmevent", &Decoder::DecodeNothing},
      {"shfl", &Decoder::DecodeShuffle},
      {"vote", &Decoder::DecodeVote},
      {"match", &Decoder::DecodeMatch},
      {"redux", &Decoder::DecodeReduce},
      {"activemask", &Decoder::DecodeActiveMask},
      {"elect", &Decoder::DecodeElect},
  };
  const auto found = methods.find(opcode);
  return found != methods.end() ? found->second : nullptr;
}

}  // namespace ptx
}  // namespace cudasim
