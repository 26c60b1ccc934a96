// A PTX text as data: variables and functions, whose bodies are parsed when they are first needed.
// Everything refers to the text by std::string_view.
#ifndef CUDASIM_PTX_MODULE_H_
#define CUDASIM_PTX_MODULE_H_

#include <cstddef>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "tools/cudasim/ptx/types.h"

namespace cudasim {
namespace ptx {

// A text that is not PTX, or that asks for something that the machine does not have. The message
// names the line of the PTX text.
struct Unsupported : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A variable of any space, or a parameter.
struct Variable {
  std::string_view name;
  Space space = Space::kGlobal;
  Type type = Type::kNone;
  uint32_t alignment = 1;
  uint64_t bytes = 0;  // 0: its size is the launch's (extern .shared)
  bool external = false;
  std::string initial;  // its first bytes; the others are 0
  // Pointers among them: the variable that they point to.
  struct Pointer {
    uint64_t at;
    std::string_view target;
    uint64_t offset;
    bool generic;
  };
  std::vector<Pointer> pointers;
};

struct Operand {
  enum class Kind : uint8_t {
    kNone,       // _
    kRegister,   // %r1, !%p1, %r1|%p1
    kImmediate,  // 3, 0f3F800000, 1.5
    kSymbol,     // a variable, function or label, perhaps with an offset
    kAddress,    // [%rd1+8], [variable+8], [16]
    kVector,     // {a, b} or (a, b)
    kSpecial,    // %tid.x
  };
  enum class Literal : uint8_t { kInteger, kF32, kF64 };  // an immediate's value: bits of that type

  Kind kind = Kind::kNone;
  Literal literal = Literal::kInteger;
  bool negated = false;  // !%p1
  int reg = -1;          // kRegister, and kAddress if it has one
  int second = -1;       // the register after |
  uint64_t value = 0;    // of an immediate, or an offset in bytes
  std::string_view symbol;
  int variable = -1;  // the symbol's number among the body's variables
  std::vector<Operand> elements;
};

// A source position, by .loc.
struct Position {
  int file = 0;  // 0: unknown
  int line = 0;
  int inlined_at = -1;  // the number of the position of the call
};

struct Statement {
  std::string_view opcode;  // "add.rn.f32"
  int guard = -1;           // a predicate's register
  bool guard_negated = false;
  int line = 0;  // in the PTX text
  int position = -1;
  std::vector<Operand> operands;
};

struct Body {
  std::vector<Width> registers;
  std::vector<std::string_view> register_names;
  std::vector<Statement> statements;
  std::map<std::string_view, int> labels;  // the number of the next statement
  std::map<std::string_view, std::vector<std::string_view>> branch_targets;
  std::vector<Variable> variables;  // .shared, .local and .param
  std::vector<Position> positions;
};

struct Function {
  std::string_view name;
  bool entry = false;  // a kernel
  bool external = false;
  std::vector<Variable> results, parameters;
  std::string_view text;  // of the body, without its braces
  int line = 0;           // where that begins
};

struct Module {
  std::string text;
  std::vector<Variable> variables;
  std::map<std::string_view, Function> functions;
  std::map<int, std::string_view> files;  // by .file's number

  const Variable* FindVariable(std::string_view name) const;
};

// Throws Unsupported.
std::unique_ptr<Module> ParseModule(std::string text);
Body ParseBody(const Function& function);

// "a.cuh:12, inlined at b.cu:34"; empty if the text has no positions.
std::string DescribePosition(const Module& module, const Body& body, int position);

}  // namespace ptx
}  // namespace cudasim

#endif  // CUDASIM_PTX_MODULE_H_
