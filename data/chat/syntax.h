// Templates as tokens and as trees of syntax.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "data/chat/builtins.h"
#include "data/chat/value.h"

namespace lockstep::data::chat {

struct Position {
  int line = 1, column = 1;  // column in characters
};

// A template that cannot be parsed, with the position.
struct LocatedFailure {
  Position position;
  std::string message;
};

template <class... Args>
[[noreturn]] void FailAt(const Position& position, const Args&... args) {
  throw LocatedFailure{position, StrCat(args...)};
}

enum class TokenType {
  kText,      // between the tags
  kOperator,  // also {% %} {{ }}
  kName,
  kString,   // `text` is what it denotes
  kInteger,  // `text` without underscores
  kFloat,
  kEnd
};

struct Token {
  TokenType type = TokenType::kEnd;
  std::string text;
  Position position;
};

// With trim_blocks and lstrip_blocks of Jinja: white space before a tag on its line, and the
// newline after it, are dropped; `-` drops more and `+` nothing. Comments are dropped; raw blocks
// are text. The last token is kEnd. Throws LocatedFailure.
std::vector<Token> Tokenize(std::string_view source);

// How deep parts may be nested: the parser and the evaluator recurse no deeper.
inline constexpr int kMaxSyntaxDepth = 150;

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

enum class ExpressionKind {
  kConstant,
  kName,
  kList,         // operands: the elements
  kTuple,        // the same
  kDict,         // key, value, key, value, ...
  kAttribute,    // operand.name
  kItem,         // operand[operand]
  kSlice,        // operand[operand:operand:operand]
  kCall,         // operand(operands)
  kFilter,       // operand|name(operands)
  kTest,         // operand is name(operands)
  kNegative,     // -operand
  kNot,          // not operand
  kAnd,          // operand and operand
  kOr,           // operand or operand
  kCompare,      // operands, with one of `names` between two
  kArithmetic,   // operand name operand
  kConcatenate,  // operand ~ operand ~ ...
  kConditional   // operands: value, condition, and the value otherwise, unless absent
};

struct Expression {
  ExpressionKind kind;
  Position position;
  int depth = 1;  // how deep its parts are nested
  std::string name;
  Value constant;
  const Builtin* builtin = nullptr;     // of a filter or test
  std::vector<ExpressionPtr> operands;  // the first of a filter is nullptr at the start of set's
  // Symbols of kCompare; of the arguments of a call, filter or test: empty for positional ones.
  std::vector<std::string> names;
};

struct Statement;
using Block = std::vector<Statement>;

enum class StatementKind {
  kText,
  kOutput,      // {{ expression }}
  kIf,          // a block for each expression, and one for else unless absent
  kFor,         // for target in expression (if expression): block, block for else
  kSet,         // set target = expression
  kSetBlock,    // set target = block, with filters: expression, unless absent
  kMacro,       // macro text(names): block; expressions: the defaults, or nullptr
  kGeneration,  // block
  kBreak,
  kContinue
};

struct Statement {
  StatementKind kind;
  Position position;
  std::string text;
  ExpressionPtr target = nullptr;  // a name, an attribute of a name (of a namespace), or a tuple
  std::vector<ExpressionPtr> expressions = {};
  std::vector<Block> blocks = {};
  std::vector<std::string> names = {};
};

struct Syntax {
  Block block;
  bool has_generation = false;
};

// Throws LocatedFailure.
Syntax Parse(std::string_view source);

}  // namespace lockstep::data::chat
