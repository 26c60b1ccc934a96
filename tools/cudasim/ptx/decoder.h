// From a function's statements to a program. Statements become one instruction each, or a few:
// rounding modes, guards and the like are instructions of their own.
#ifndef CUDASIM_PTX_DECODER_H_
#define CUDASIM_PTX_DECODER_H_

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tools/cudasim/ptx/block.h"
#include "tools/cudasim/ptx/flow.h"
#include "tools/cudasim/ptx/image.h"
#include "tools/cudasim/ptx/operations.h"

namespace cudasim {
namespace ptx {

class Decoder {
 public:
  Decoder(Image* image, Program* program) : image_(image), program_(program) {}
  void Run();

 private:
  using Method = void (Decoder::*)();

  // An opcode's parts: "ld", "global", "v4", "f32".
  struct Parts {
    std::vector<std::string_view> words;
    bool Has(std::string_view word) const;
    // Removes the word; whether it was there.
    bool Take(std::string_view word);
    std::string Join() const;  // "ld.global.v4.f32"
    std::string_view back(size_t from_end = 0) const;
    Type type(size_t from_end = 0) const { return TypeNamed(back(from_end)); }
  };

  // decoder.cc: layout, statements, operands.
  void PlaceParameters();
  void PlaceVariables();
  void FoldConstants();
  void DecodeStatement();
  void DecodeGuarded();
  void DecodeOperation();
  void LinkBranches();
  [[noreturn]] void Fail(const std::string& message) const;
  const Operand& operand(size_t index) const;

  Instruction& Emit(Handler run, Slot d = 0, Slot a = 0, Slot b = 0, Slot c = 0);
  // An operation of the table.
  void EmitOperation(std::string_view name, Slot d, Slot a, Slot b = 0, Slot c = 0);
  // Where a source lies, as `width` bits; immediates become the type's.
  Slot Read(const Operand& operand, Width width, Type type = Type::kNone);
  Slot Read(const Operand& operand, Type type) { return Read(operand, WidthOf(type), type); }
  Slot Write(const Operand& operand, Width width);
  Slot ReadPredicate(const Operand& operand);  // without its negation
  Slot Constant(uint64_t value, Width width);
  Slot Scratch(Width width);
  Slot Narrow(Slot from, Width own, Width wanted);
  Slot Address(const Operand& operand, Space space, bool* wide, uint64_t* offset);
  uint32_t FurtherSlots(const std::vector<Slot>& slots);

  struct Place {
    Space space;
    uint64_t value;
    bool in_frame = false;  // relative to the function's frame
    bool dynamic_shared = false;
    bool is_function = false;
  };
  Place FindSymbol(const Operand& operand);
  Slot AddressOf(const Operand& operand, Width width);
  Slot Special(const Operand& operand);

  // decode_memory.cc
  void DecodeLoad();
  void DecodeStore();
  void DecodeAtomic();
  void DecodeAsyncCopy();
  void DecodeConvertAddress();
  void DecodeIsSpace();
  void DecodeLoadMatrices();
  void DecodeMatrixProduct();
  std::vector<Slot> VectorSlots(const Operand& operand, Width width, bool write);
  Space TakeSpace(Parts* parts, Space otherwise);

  // decode_control.cc
  void DecodeBranch();
  void DecodeBranchByIndex();
  void DecodeCall();
  void DecodeReturn();
  void DecodeBarrier();
  void DecodeFence();
  void DecodeTrap();
  void DecodeSleep();
  void DecodeNothing();
  void DecodeShuffle();
  void DecodeVote();
  void DecodeMatch();
  void DecodeReduce();
  void DecodeActiveMask();
  void DecodeElect();
  bool ReturnsAt(int statement) const;

  // decode_moves.cc
  void DecodeMove();
  void DecodeSelect();
  void DecodeCompare();
  void DecodeSet();
  void DecodePredicates();
  void DecodeConversion();
  void DecodeInsertBits();
  void DecodeLookup();

  Method FindMethod(std::string_view opcode) const;

  Image* image_;
  Program* program_;
  Layout layout_;
  std::vector<bool> folded_;  // statements that need no instruction
  const Statement* statement_ = nullptr;
  int number_ = 0;  // of the statement
  Parts parts_;
  std::map<std::pair<uint64_t, Width>, Slot> constants_;
  std::vector<std::byte> constant_bytes_;
  std::map<std::string_view, Place> parameters_;
  std::vector<Place> variables_;  // of the body
  std::vector<uint32_t> starts_;  // statements' first instructions
  struct Branching {
    uint32_t instruction;
    int target;  // statement
  };
  std::vector<Branching> branches_;
  struct Table {
    uint32_t instruction;
    std::vector<std::string_view> labels;
  };
  std::vector<Table> tables_;
  uint32_t scratch_used_ = 0;
};

}  // namespace ptx
}  // namespace cudasim

#endif  // CUDASIM_PTX_DECODER_H_
