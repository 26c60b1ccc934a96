// What the parser makes of a template.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "data/chat/lexer.h"
#include "data/chat/value.h"

namespace lockstep::data::chat {

// Parts within parts: the parser and the evaluator recurse no deeper.
inline constexpr int kMaxSyntaxDepth = 150;

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

enum class ExpressionKind {
  kConstant,
  kName,
  kList,       // operands: the elements
  kTuple,      // the same
  kDict,       // key, value, key, value, ...
  kAttribute,  // operand.name
  kItem,       // operand[operand]
  kSlice,      // operand[operand:operand:operand]
  kCall,       // operand(arguments)
  kFilter,     // operand|name(arguments)
  kTest,       // operand is name(arguments)
  kNegative,   // -operand
  kPositive,   // +operand
  kNot,
  kAnd,
  kOr,
  kCompare,      // operands, with one of `symbols` between two
  kArithmetic,   // operand name operand
  kConcatenate,  // operand ~ operand ~ ...
  kConditional   // operands: value, condition, and what else unless absent
};

struct Expression {
  ExpressionKind kind;
  Position position;
  int depth = 1;  // of parts within parts
  std::string name;
  Value constant;
  std::vector<ExpressionPtr> operands;
  std::vector<std::string> symbols;
  std::vector<ExpressionPtr> arguments;  // positional
  std::vector<std::pair<std::string, ExpressionPtr>> named;
};

// What can be assigned to: a name, an attribute of a namespace, or several of them.
struct Target {
  Position position;
  std::string name;
  std::string attribute;  // of the namespace `name`; may be empty
  std::vector<Target> parts;
  bool is_tuple = false;
};

struct Statement;
using Block = std::vector<Statement>;

enum class StatementKind {
  kText,
  kOutput,      // {{ expression }}
  kIf,          // branches; else_block
  kFor,         // for target in expression if condition: block; else_block
  kSet,         // set target = expression
  kSetBlock,    // set target = block, with filters: expression, whose innermost operand is absent
  kMacro,       // macro name(parameters): block
  kGeneration,  // block
  kBreak,
  kContinue
};

struct Statement {
  struct Branch {
    ExpressionPtr condition;
    Block block;
  };
  struct Parameter {
    std::string name;
    ExpressionPtr absent;  // its default, or nullptr
  };

  StatementKind kind;
  Position position;
  std::string text;  // of kText; the name of a macro
  ExpressionPtr expression;
  ExpressionPtr condition;
  Target target;
  Block block, else_block;
  std::vector<Branch> branches;
  std::vector<Parameter> parameters;
};

}  // namespace lockstep::data::chat
