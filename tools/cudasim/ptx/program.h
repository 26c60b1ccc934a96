// A function as the machine runs it: instructions whose operands are places in a warp's memory.
#ifndef CUDASIM_PTX_PROGRAM_H_
#define CUDASIM_PTX_PROGRAM_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tools/cudasim/ptx/text/module.h"

namespace cudasim {
namespace ptx {

struct Warp;
struct Instruction;

// Runs an instruction for the active lanes. Returns the next one; null if the warp shall not go on
// by itself (see Warp::state).
using Handler = const Instruction* (*)(Warp& warp, const Instruction* instruction);

// Where an operand's 32 values lie, lane after lane: an offset in one of the warp's files, whose
// number is in the two lowest bits. A predicate is 32 bits.
using Slot = uint32_t;
enum File : uint32_t {
  kRegisters,    // of the warp, in the current call
  kConstants,    // of the program
  kBlockValues,  // %ctaid and the like: the same in all warps of a block
  kWarpValues,   // %tid and the like
};
inline Slot MakeSlot(File file, size_t offset) { return static_cast<Slot>(offset) | file; }

struct Instruction {
  Handler run;
  Slot d = 0, a = 0, b = 0, c = 0;
  union {
    uint64_t imm = 0;         // an address' offset, or what the handler says
    const Instruction* next;  // of a branch
    const void* data;
  };
  uint32_t extra = 0;      // the first of its further slots, in Program::slots
  uint8_t count = 0;       // of those slots, or what the handler says
  uint8_t option = 0;      // what the handler says
  uint16_t access = 0;     // number of its entry in the block's cache of extents
  int32_t statement = -1;  // that it stems from
};

// An argument or result of a call: bytes of local memory, relative to the frames of caller and
// callee.
struct Passed {
  uint32_t caller, callee, bytes;
};

struct Program;

struct Call {
  const Program* callee = nullptr;                            // null: the address is in slot a
  void (*builtin)(Warp& warp, const Instruction*) = nullptr;  // instead of a callee
  std::vector<Passed> arguments, results;
};

// A place for lanes' values, aligned for vectors.
class LaneMemory {
 public:
  std::byte* Reserve(size_t bytes);  // keeps the contents if it is large enough
  std::byte* data() const { return data_.get(); }

 private:
  struct Free {
    void operator()(std::byte* data) const { ::operator delete (data, std::align_val_t{64}); }
  };
  std::unique_ptr<std::byte, Free> data_;
  size_t bytes_ = 0;
};

// A parameter that is the address of global memory: see pointers.h.
struct PointerParameter {
  uint32_t offset;
  bool written;  // else only read
};

struct Program {
  std::string name;  // demangled
  const Module* module = nullptr;
  const Function* function = nullptr;
  Body body;
  std::vector<Instruction> code;
  std::vector<Slot> slots;  // further operands
  std::vector<std::unique_ptr<Call>> calls;
  std::vector<std::unique_ptr<std::vector<const Instruction*>>> tables;  // targets of brx.idx
  LaneMemory constants;
  uint32_t register_bytes = 0;
  uint32_t shared_bytes = 0;  // static shared memory, with what its module's functions share
  uint32_t local_bytes = 0;   // a lane's frame
  std::vector<Variable> parameters;
  // An entry's: in its parameters; a function's: in its frame.
  std::vector<uint32_t> parameter_offsets, result_offsets;
  uint32_t parameter_bytes = 0;
  bool calls_functions = false;
  bool approximates = false;  // a GPU's results may have other bits: see TakeApproximated
  std::vector<PointerParameter> pointers;

  // "a.cuh:12, inlined at b.cu:34, PTX line 56: ld.global.f32".
  std::string Describe(const Instruction* instruction) const;
};

}  // namespace ptx
}  // namespace cudasim

#endif  // CUDASIM_PTX_PROGRAM_H_
