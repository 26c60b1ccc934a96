#include <algorithm>

#include "data/chat/parser.h"

namespace lockstep::data::chat {
namespace {

// Tags of Jinja that chat templates do not use.
constexpr std::string_view kUnsupportedTags[] = {"autoescape", "block",  "call",  "do",
                                                 "extends",    "filter", "from",  "import",
                                                 "include",    "print",  "trans", "with"};

Statement MakeStatement(StatementKind kind, const Position& position) {
  Statement statement;
  statement.kind = kind;
  statement.position = position;
  return statement;
}

// True, true, None and so on are constants.
void RequireAssignable(const std::string& name, const Position& position) {
  static constexpr std::string_view kConstants[] = {"true",  "True", "false",
                                                    "False", "none", "None"};
  if (std::ranges::find(kConstants, name) != std::end(kConstants)) {
    FailAt(position, "'", name, "' is a constant and cannot be assigned to");
  }
}

}  // namespace

Block StatementParser::ParseTemplate() { return ParseBlock({}, {}); }

Block StatementParser::ParseBlock(std::initializer_list<std::string_view> ends,
                                  const Position& begin) {
  if (++depth_ > kMaxSyntaxDepth) {
    FailAt(begin, "tags are nested deeper than ", kMaxSyntaxDepth, " levels");
  }
  Block block;
  for (;;) {
    const Token token = tokens_.Next();
    if (token.type == TokenType::kText) {
      block.push_back(MakeStatement(StatementKind::kText, token.position));
      block.back().text = token.text;
    } else if (token.type == TokenType::kOutputBegin) {
      block.push_back(MakeStatement(StatementKind::kOutput, token.position));
      block.back().expression = expressions_.ParseTuple();
      tokens_.RequireType(TokenType::kOutputEnd, "'}}'");
    } else if (token.type == TokenType::kTagBegin) {
      const auto closes = [&](std::string_view end) { return tokens_.IsName(end); };
      if (std::ranges::any_of(ends, closes)) break;
      block.push_back(ParseTag());
      tokens_.RequireType(TokenType::kTagEnd, "the end of the tag, '%}'");
    } else {
      if (ends.size() == 0) break;
      FailAt(begin, "this tag has no {% ", *(ends.end() - 1), " %}");
    }
  }
  --depth_;
  return block;
}

Block StatementParser::ParseBody(std::string_view end, const Position& begin) {
  tokens_.TakeOperator(":");
  tokens_.RequireType(TokenType::kTagEnd, "the end of the tag, '%}'");
  Block block = ParseBlock({end}, begin);
  tokens_.RequireName(end);
  return block;
}

Block StatementParser::ParseClosedBody(std::string_view end, const Position& begin) {
  const int loops = std::exchange(loops_, 0);
  ++not_top_level_;
  Block block = ParseBody(end, begin);
  --not_top_level_;
  loops_ = loops;
  return block;
}

Statement StatementParser::ParseTag() {
  const Token name = tokens_.Peek();
  tokens_.RequireType(TokenType::kName, "the name of a tag");
  if (name.text == "for") return ParseFor(name.position);
  if (name.text == "if") return ParseIf(name.position);
  if (name.text == "set") return ParseSet(name.position);
  if (name.text == "macro") return ParseMacro(name.position);
  if (name.text == "generation") return ParseGeneration(name.position);
  if (name.text == "break" || name.text == "continue") return ParseLoopControl(name);
  if (std::ranges::find(kUnsupportedTags, name.text) != std::end(kUnsupportedTags)) {
    FailAt(name.position, "the tag '", name.text, "' is not supported in chat templates");
  }
  FailAt(name.position, "the tag '", name.text,
         "' is unknown, or closes no open tag; there are for, if, set, macro, generation, break, "
         "continue and raw");
}

Statement StatementParser::ParseFor(const Position& position) {
  Statement loop = MakeStatement(StatementKind::kFor, position);
  loop.target = ParseTarget(/*attributes=*/false);
  if (loop.target.name == "loop") FailAt(loop.target.position, "'loop' is the state of the loop");
  tokens_.RequireName("in");
  loop.expression = expressions_.ParseTuple(/*conditional=*/false);
  if (tokens_.TakeName("if")) loop.condition = expressions_.Parse();
  if (tokens_.IsName("recursive")) {
    FailAt(tokens_.Peek().position, "recursive loops are not supported; use a macro");
  }
  tokens_.TakeOperator(":");
  tokens_.RequireType(TokenType::kTagEnd, "the end of the tag, '%}'");
  ++loops_;
  loop.block = ParseBlock({"else", "endfor"}, position);
  --loops_;
  if (tokens_.TakeName("else")) {
    loop.else_block = ParseBody("endfor", position);
  } else {
    tokens_.RequireName("endfor");
  }
  return loop;
}

Statement StatementParser::ParseIf(const Position& position) {
  Statement statement = MakeStatement(StatementKind::kIf, position);
  do {
    Statement::Branch branch;
    branch.condition = expressions_.ParseTuple(/*conditional=*/false);
    tokens_.TakeOperator(":");
    tokens_.RequireType(TokenType::kTagEnd, "the end of the tag, '%}'");
    branch.block = ParseBlock({"elif", "else", "endif"}, position);
    statement.branches.push_back(std::move(branch));
  } while (tokens_.TakeName("elif"));
  if (tokens_.TakeName("else")) {
    statement.else_block = ParseBody("endif", position);
  } else {
    tokens_.RequireName("endif");
  }
  return statement;
}

Statement StatementParser::ParseSet(const Position& position) {
  Statement set = MakeStatement(StatementKind::kSet, position);
  set.target = ParseTarget(/*attributes=*/true);
  if (tokens_.TakeOperator("=")) {
    set.expression = expressions_.ParseTuple();
    return set;
  }
  set.kind = StatementKind::kSetBlock;
  set.expression = expressions_.ParseFilters(nullptr);
  set.block = ParseClosedBody("endset", position);
  return set;
}

Statement StatementParser::ParseMacro(const Position& position) {
  Statement macro = MakeStatement(StatementKind::kMacro, position);
  macro.text = tokens_.RequireAnyName("the name of the macro");
  RequireAssignable(macro.text, position);
  tokens_.RequireOperator("(");
  while (!tokens_.TakeOperator(")")) {
    if (!macro.parameters.empty()) tokens_.RequireOperator(",");
    const Position at = tokens_.Peek().position;
    Statement::Parameter parameter;
    parameter.name = tokens_.RequireAnyName("the name of a parameter");
    RequireAssignable(parameter.name, at);
    for (const Statement::Parameter& other : macro.parameters) {
      if (other.name == parameter.name) FailAt(at, "two parameters are named '", other.name, "'");
    }
    if (tokens_.TakeOperator("=")) {
      parameter.absent = expressions_.Parse();
    } else if (!macro.parameters.empty() && macro.parameters.back().absent != nullptr) {
      FailAt(at, "the parameter '", parameter.name, "' needs a default as the one before has one");
    }
    macro.parameters.push_back(std::move(parameter));
  }
  macro.block = ParseClosedBody("endmacro", position);
  return macro;
}

Statement StatementParser::ParseGeneration(const Position& position) {
  if (not_top_level_ > 0) {
    FailAt(position,
           "a generation block within a macro, a set block or another generation block cannot be "
           "located in the text; move it out");
  }
  has_generation_ = true;
  Statement generation = MakeStatement(StatementKind::kGeneration, position);
  generation.block = ParseClosedBody("endgeneration", position);
  return generation;
}

Statement StatementParser::ParseLoopControl(const Token& name) {
  if (loops_ == 0) {
    FailAt(name.position, "'", name.text,
           "' is outside of a loop, or in a macro, set block or generation block within it");
  }
  return MakeStatement(name.text == "break" ? StatementKind::kBreak : StatementKind::kContinue,
                       name.position);
}

Target StatementParser::ParseTarget(bool attributes) {
  Target first = ParseTargetPart(attributes);
  if (!tokens_.IsOperator(",")) return first;
  Target tuple;
  tuple.position = first.position;
  tuple.is_tuple = true;
  tuple.parts.push_back(std::move(first));
  while (tokens_.TakeOperator(",")) {
    if (tokens_.IsName("in") || tokens_.IsOperator("=") || tokens_.IsOperator(")")) break;
    tuple.parts.push_back(ParseTargetPart(attributes));
  }
  return tuple;
}

Target StatementParser::ParseTargetPart(bool attributes) {
  Target target;
  target.position = tokens_.Peek().position;
  if (tokens_.TakeOperator("(")) {
    if (++depth_ > kMaxSyntaxDepth) FailAt(target.position, "tuples are nested too deep");
    target = ParseTarget(attributes);
    --depth_;
    tokens_.RequireOperator(")");
    return target;
  }
  target.name = tokens_.RequireAnyName("a name to assign to");
  RequireAssignable(target.name, target.position);
  if (attributes && tokens_.TakeOperator(".")) {
    target.attribute = tokens_.RequireAnyName("the name of an attribute");
  }
  return target;
}

}  // namespace lockstep::data::chat
