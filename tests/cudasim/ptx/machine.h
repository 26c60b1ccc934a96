// Runs PTX texts on the machine, for tests.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tools/cudasim/ptx/image.h"
#include "tools/cudasim/ptx/launch.h"

namespace cudasim::ptx {

inline std::string Header() { return ".version 8.0\n.target sm_80\n.address_size 64\n"; }

// Runs kernel `name` with arguments by value. Throws what the machine throws.
template <typename... Arguments>
void Launch1(Image* image, const std::string& name, Size grid, Size block, const Settings& settings,
             Arguments... arguments) {
  const Program* const program = image->FindKernel(name);
  ASSERT_NE(program, nullptr) << name;
  void* pointers[] = {const_cast<void*>(static_cast<const void*>(&arguments))..., nullptr};
  ASSERT_EQ(program->parameters.size(), sizeof...(Arguments));
  Launch launch;
  launch.program = program;
  launch.grid = grid;
  launch.block = block;
  launch.parameters = PackParameters(*program, pointers);
  Run(launch, settings);
}

// A kernel without parameters' names: %rd0 to %rd3 are its pointers a, b, c and out, each advanced
// by the thread's number in the grid times its bytes; %tid.x is in %r0.
std::string KernelText(const std::string& body, std::array<int, 4> strides);

// "add.s32 d, a, b" for each set of arguments: the bits of the results. Types by name.
struct OperationCase {
  std::string opcode, result;
  std::vector<std::string> arguments;
};
std::vector<uint64_t> RunOperation(const OperationCase& operation,
                                   const std::vector<std::array<uint64_t, 3>>& arguments);

// The message of the error that f throws, or "" without one.
template <typename F>
std::string MessageOf(F f) {
  try {
    f();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace cudasim::ptx
