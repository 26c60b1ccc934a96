#include <initializer_list>

#include "data/chat/parser.h"

namespace lockstep::data::chat {
namespace {

// Tags of Jinja that chat templates do not use.
constexpr std::string_view kUnsupportedTags[] = {"autoescape", "block",  "call",  "do",
                                                 "extends",    "filter", "from",  "import",
                                                 "include",    "print",  "trans", "with"};

class StatementParser : ExpressionParser {
 public:
  explicit StatementParser(std::vector<Token> tokens) : ExpressionParser(std::move(tokens)) {}

  Syntax Run() {
    Block block = ParseBlock({}, {});
    return {std::move(block), has_generation_};
  }

 private:
  // Statements, up to the tag of one of these names, whose name is the next token.
  Block ParseBlock(std::initializer_list<std::string_view> ends, const Position& begin) {
    CheckDepth(++block_depth_, begin);
    Block block;
    for (;;) {
      const Token token = Next();
      if (token.type == TokenType::kText) {
        block.push_back({StatementKind::kText, token.position, token.text});
      } else if (token.text == "{{") {
        block.push_back({StatementKind::kOutput, token.position, ""});
        block.back().expressions.push_back(ParseTuple());
        Require("}}");
      } else if (token.text == "{%") {
        if (std::ranges::any_of(ends, [&](std::string_view end) { return Is(end); })) break;
        block.push_back(ParseTag());
        Require("%}");
      } else {
        if (ends.size() == 0) break;
        FailAt(begin, "this tag has no {% ", *(ends.end() - 1), " %}");
      }
    }
    --block_depth_;
    return block;
  }

  // The same from the end of the opening tag; `ends` as above.
  Block ParseBody(std::initializer_list<std::string_view> ends, const Position& begin) {
    Take(":");
    Require("%}");
    return ParseBlock(ends, begin);
  }

  // A block whose loops are its own, up to its end: break and continue cannot leave it.
  Block ParseClosedBody(std::string_view end, const Position& begin) {
    const int loops = std::exchange(loops_, 0);
    ++not_top_level_;
    Block block = ParseBody({end}, begin);
    Require(end);
    --not_top_level_;
    loops_ = loops;
    return block;
  }

  Statement ParseTag() {
    const Position position = Peek().position;
    const std::string name = RequireName("the name of a tag");
    if (name == "for") return ParseFor(position);
    if (name == "if") return ParseIf(position);
    if (name == "set") return ParseSet(position);
    if (name == "macro") return ParseMacro(position);
    if (name == "generation") return ParseGeneration(position);
    if (name == "break" || name == "continue") {
      if (loops_ > 0) {
        return {name == "break" ? StatementKind::kBreak : StatementKind::kContinue, position, ""};
      }
      FailAt(position, "'", name,
             "' is outside of a loop, or in a macro, set block or generation block within it");
    }
    if (std::ranges::find(kUnsupportedTags, name) != std::end(kUnsupportedTags)) {
      FailAt(position, "the tag '", name, "' is not supported in chat templates");
    }
    FailAt(position, "the tag '", name,
           "' is unknown, or closes no open tag; there are for, if, set, macro, generation, break, "
           "continue and raw");
  }

  Statement ParseFor(const Position& position) {
    Statement loop{StatementKind::kFor, position, ""};
    loop.target = ParseTarget(/*attributes=*/false);
    if (loop.target->name == "loop") FailAt(loop.target->position, "'loop' is the loop's state");
    Require("in");
    loop.expressions.push_back(ParseTuple(/*conditional=*/false));
    if (Take("if")) loop.expressions.push_back(Parse());
    if (Is("recursive")) {
      FailAt(Peek().position, "recursive loops are not supported; use a macro");
    }
    ++loops_;
    loop.blocks.push_back(ParseBody({"else", "endfor"}, position));
    --loops_;
    loop.blocks.push_back(Take("else") ? ParseBody({"endfor"}, position) : Block());
    Require("endfor");
    return loop;
  }

  Statement ParseIf(const Position& position) {
    Statement statement{StatementKind::kIf, position, ""};
    do {
      statement.expressions.push_back(ParseTuple(/*conditional=*/false));
      statement.blocks.push_back(ParseBody({"elif", "else", "endif"}, position));
    } while (Take("elif"));
    if (Take("else")) statement.blocks.push_back(ParseBody({"endif"}, position));
    Require("endif");
    return statement;
  }

  Statement ParseSet(const Position& position) {
    Statement set{StatementKind::kSet, position, ""};
    set.target = ParseTarget(/*attributes=*/true);
    if (Take("=")) {
      set.expressions.push_back(ParseTuple());
      return set;
    }
    set.kind = StatementKind::kSetBlock;
    if (Is("|")) set.expressions.push_back(ParseFilters(nullptr));
    set.blocks.push_back(ParseClosedBody("endset", position));
    return set;
  }

  Statement ParseMacro(const Position& position) {
    Statement macro{StatementKind::kMacro, position, RequireVariable("the name of the macro")};
    Require("(");
    while (!Take(")")) {
      if (!macro.names.empty()) Require(",");
      const Position at = Peek().position;
      const std::string name = RequireVariable("the name of a parameter");
      if (std::ranges::find(macro.names, name) != macro.names.end()) {
        FailAt(at, "two parameters are named '", name, "'");
      }
      const bool needs_default = !macro.names.empty() && macro.expressions.back() != nullptr;
      if (!Is("=") && needs_default) {
        FailAt(at, "the parameter '", name, "' needs a default as the one before has one");
      }
      macro.names.push_back(name);
      macro.expressions.push_back(Take("=") ? Parse() : nullptr);
    }
    macro.blocks.push_back(ParseClosedBody("endmacro", position));
    return macro;
  }

  Statement ParseGeneration(const Position& position) {
    if (not_top_level_ > 0) {
      FailAt(position,
             "a generation block within a macro, a set block or another generation block cannot "
             "be located in the text; move it out");
    }
    has_generation_ = true;
    Statement generation{StatementKind::kGeneration, position, ""};
    generation.blocks.push_back(ParseClosedBody("endgeneration", position));
    return generation;
  }

  // What is assigned to; with `attributes`, also attributes of namespaces.
  ExpressionPtr ParseTarget(bool attributes) {
    const Position position = Peek().position;
    ExpressionPtr first = ParseTargetPart(attributes);
    if (!Is(",")) return first;
    ExpressionPtr tuple = Make(ExpressionKind::kTuple, position, std::move(first));
    while (Take(",") && !Is("in") && !Is("=") && !Is(")")) {
      AddOperand(tuple.get(), ParseTargetPart(attributes));
    }
    return tuple;
  }

  ExpressionPtr ParseTargetPart(bool attributes) {
    const Position position = Peek().position;
    if (Take("(")) {
      CheckDepth(++block_depth_, position);
      ExpressionPtr inner = ParseTarget(attributes);
      --block_depth_;
      Require(")");
      return inner;
    }
    ExpressionPtr target = Make(ExpressionKind::kName, position);
    target->name = RequireVariable("a name to assign to");
    if (!attributes || !Take(".")) return target;
    target = Make(ExpressionKind::kAttribute, position, std::move(target));
    target->name = RequireName("the name of an attribute");
    return target;
  }

  int block_depth_ = 0;
  int loops_ = 0;          // around, that break can leave
  int not_top_level_ = 0;  // set blocks, macros and generation blocks around
  bool has_generation_ = false;
};

}  // namespace

Syntax Parse(std::string_view source) { return StatementParser(Tokenize(source)).Run(); }

}  // namespace lockstep::data::chat
