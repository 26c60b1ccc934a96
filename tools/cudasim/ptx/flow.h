// How control and values flow through a function, and so which registers can share a place: nvcc
// gives every value a register of its own, and warps whose registers fit the cache run faster.
#ifndef CUDASIM_PTX_FLOW_H_
#define CUDASIM_PTX_FLOW_H_

#include <vector>

#include "tools/cudasim/ptx/program.h"
#include "tools/cudasim/ptx/text/module.h"

namespace cudasim {
namespace ptx {

// "bra" of "bra.uni".
std::string_view BaseOpcode(const Statement& statement);
// Whether the first operand is a result rather than a source.
bool HasResult(const Statement& statement);

// For each statement, whether a block begins there: lanes that have diverged can meet again.
std::vector<bool> FindLeaders(const Body& body);

// By register: the statement that alone defines it, whenever it runs; -1 if there is none.
std::vector<int> SoleDefinitions(const Body& body);

struct Layout {
  std::vector<Slot> slots;  // by register
  uint32_t bytes = 0;
};
Layout PlaceRegisters(const Body& body);

}  // namespace ptx
}  // namespace cudasim

#endif  // CUDASIM_PTX_FLOW_H_
