// The instructions that use memory.
#ifndef CUDASIM_PTX_MEMORY_H_
#define CUDASIM_PTX_MEMORY_H_

#include <string_view>

#include "tools/cudasim/ptx/program.h"

namespace cudasim {
namespace ptx {

// Slot a has the address, to which imm is added; `wide`: it has 64 bits. The value is in slot d, or
// in `count` further slots. Option: see OptionFor. Null if there is no such instruction.
Handler LoadHandler(Space space, bool wide, bool vector, Type type, Width width);
Handler StoreHandler(Space space, bool wide, bool vector, Type type, Width width);
// The same value in all lanes: at imm in the kernel's parameters.
Handler ParameterHandler(Type type, Width width);

// d = the old value (if count is not 0), a = the address, b and c = operands; option: see
// OptionFor. The operation is "add", "cas" and so on.
Handler AtomicHandler(std::string_view operation, Type type);

// cp.async: d = the destination in shared memory (a 32-bit address), a = the source, b = how many
// bytes are copied, of `count`; the others become 0. Imm: the destination's offset, and in the
// upper half the source's. What is copied arrives when it is waited for; until then the destination
// holds 0xFF.
const Instruction* BeginCopy(Warp& warp, const Instruction* i);
const Instruction* CommitCopies(Warp& warp, const Instruction* i);
const Instruction* WaitForCopies(Warp& warp, const Instruction* i);  // imm: groups that may remain

}  // namespace ptx
}  // namespace cudasim

#endif  // CUDASIM_PTX_MEMORY_H_
