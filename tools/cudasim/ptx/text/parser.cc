#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <unordered_map>

#include "tools/cudasim/ptx/text/lexer.h"
#include "tools/cudasim/ptx/text/module.h"

namespace cudasim {
namespace ptx {
namespace {

constexpr std::pair<std::string_view, Space> kSpaces[] = {{".global", Space::kGlobal},
                                                          {".const", Space::kConst},
                                                          {".shared", Space::kShared},
                                                          {".local", Space::kLocal},
                                                          {".param", Space::kParam}};

const Space* SpaceNamed(std::string_view word) {
  for (const auto& [name, space] : kSpaces) {
    if (name == word) return &space;
  }
  return nullptr;
}

uint64_t Unsigned(Lexer* lexer, std::string_view word) {
  char* end;
  const std::string text(word);
  const uint64_t value = std::strtoull(text.c_str(), &end, 0);
  if (text.empty() || *end != '\0') lexer->Fail("'" + text + "' is not a size");
  return value;
}

// Of an element in an initialiser: a number, a variable's address, or a list of elements.
void ParseInitial(Lexer* lexer, Variable* variable, uint64_t* at) {
  if (lexer->Eat('{')) {
    do {
      ParseInitial(lexer, variable, at);
    } while (lexer->Eat(','));
    lexer->Expect('}');
    return;
  }
  const auto bytes = static_cast<size_t>(BytesOf(variable->type));
  const char c = lexer->Peek();
  uint64_t value = 0;
  if (c == '-' || (c >= '0' && c <= '9')) {
    value = lexer->Number().value;
  } else {
    Variable::Pointer pointer{*at, lexer->ExpectWord("a variable"), 0, false};
    if (pointer.target == "generic") {
      lexer->Expect('(');
      pointer.target = lexer->ExpectWord("a variable");
      pointer.generic = true;
      if (lexer->Eat('+')) pointer.offset = lexer->Number().value;
      lexer->Expect(')');
    }
    if (lexer->Eat('+')) pointer.offset += lexer->Number().value;
    if (bytes != 8) lexer->Fail("an address of less than 64 bits is not implemented");
    variable->pointers.push_back(pointer);
  }
  variable->initial.append(reinterpret_cast<const char*>(&value), bytes);
  *at += bytes;
}

// After the space, as ".align 4 .b8 name[16] = {1, 2}". Sizes that are left out are the
// initialiser's.
Variable ParseVariable(Lexer* lexer, Space space) {
  Variable variable;
  variable.space = space;
  int vector = 1;
  for (;;) {
    std::string_view word = lexer->Word();
    if (word == ".align") {
      variable.alignment = static_cast<uint32_t>(Unsigned(lexer, lexer->Word()));
    } else if (word == ".v2" || word == ".v4") {
      vector = word[2] - '0';
    } else if (word == ".ptr" || SpaceNamed(word) != nullptr) {
      continue;  // a parameter's attributes
    } else if (word.size() > 1 && word[0] == '.') {
      const Type type = TypeNamed(word.substr(1));
      if (type == Type::kNone) lexer->Fail("'" + std::string(word) + "' is no type");
      variable.type = type;
    } else {
      variable.name = word;
      break;
    }
  }
  const auto element = static_cast<uint64_t>(BytesOf(variable.type) * vector);
  variable.alignment = std::max(variable.alignment, static_cast<uint32_t>(element));
  variable.bytes = element;
  bool open = false;  // a size is left out
  while (lexer->Eat('[')) {
    if (lexer->Eat(']')) {
      open = true;
      continue;
    }
    variable.bytes *= Unsigned(lexer, lexer->Word());
    lexer->Expect(']');
  }
  if (open) variable.bytes = 0;
  if (lexer->Eat('=')) {
    uint64_t at = 0;
    ParseInitial(lexer, &variable, &at);
    variable.bytes = std::max<uint64_t>(variable.bytes, at);
  }
  return variable;
}

// "(.param .u64 a, .param .align 8 .b8 b[16])", or nothing.
std::vector<Variable> ParseParameters(Lexer* lexer) {
  std::vector<Variable> parameters;
  if (!lexer->Eat('(') || lexer->Eat(')')) return parameters;
  do {
    const std::string_view word = lexer->ExpectWord("a parameter");
    if (word == ".reg") lexer->Fail("parameters in registers are not implemented");
    if (word != ".param") lexer->Fail("expected .param");
    parameters.push_back(ParseVariable(lexer, Space::kParam));
  } while (lexer->Eat(','));
  lexer->Expect(')');
  return parameters;
}

Function ParseFunction(Lexer* lexer, bool entry) {
  Function function;
  function.entry = entry;
  if (!entry) function.results = ParseParameters(lexer);
  function.name = lexer->ExpectWord("a function's name");
  function.parameters = ParseParameters(lexer);
  // Directives about performance: .maxntid 128, 1, 1.
  for (char c = lexer->Peek(); c != '{' && c != ';'; c = lexer->Peek()) {
    if (c == 0) lexer->Fail("a function without a body");
    if (!lexer->Eat(',') && !lexer->Eat('"')) lexer->ExpectWord("a function's body");
  }
  if (lexer->Eat(';')) {
    function.external = true;
    return function;
  }
  lexer->Expect('{');
  function.line = lexer->line();
  function.text = lexer->Block();
  return function;
}

class BodyParser {
 public:
  explicit BodyParser(const Function& function) : lexer_(function.text, function.line) {
    scopes_.emplace_back();
  }

  Body Parse() {
    for (;;) {
      if (lexer_.Eat('{')) {
        scopes_.emplace_back();
      } else if (lexer_.Eat('}')) {
        if (scopes_.size() == 1) lexer_.Fail("a } without its {");
        scopes_.pop_back();
      } else if (lexer_.Eat(';')) {
        continue;
      } else if (lexer_.Peek() == 0) {
        return std::move(body_);
      } else if (lexer_.Peek() == '.') {
        ParseDirective();
      } else {
        ParseStatement();
      }
    }
  }

 private:
  // Registers of a declaration: "%r<5>" are %r0 to %r4.
  struct Registers {
    std::string_view name;
    int count;  // 0: only `name` itself
    int first;
    Width width;
  };
  // What is declared between braces.
  struct Scope {
    std::vector<Registers> registers;
    std::map<std::string_view, int> variables;
  };

  void ParseDirective() {
    const std::string_view word = lexer_.Word();
    if (word == ".reg") {
      ParseRegisters();
    } else if (word == ".loc") {
      ParseLocation();
    } else if (const Space* space = SpaceNamed(word); space != nullptr) {
      do {
        const Variable variable = ParseVariable(&lexer_, *space);
        scopes_.back().variables[variable.name] = static_cast<int>(body_.variables.size());
        body_.variables.push_back(variable);
      } while (lexer_.Eat(','));
      lexer_.Expect(';');
    } else if (word == ".branchtargets") {  // "table: .branchtargets a, b;"
      do {
        body_.branch_targets[label_].push_back(lexer_.ExpectWord("a label"));
      } while (lexer_.Eat(','));
      lexer_.Expect(';');
    } else if (word == ".pragma" || word == ".callprototype") {
      lexer_.Until(';');
    } else {
      lexer_.Fail("'" + std::string(word) + "' is not implemented");
    }
  }

  void ParseRegisters() {
    const std::string_view name = lexer_.Word();
    const Type type = name.empty() ? Type::kNone : TypeNamed(name.substr(1));
    if (type == Type::kNone || type == Type::kB128) {
      lexer_.Fail("registers of type '" + std::string(name) + "' are not implemented");
    }
    do {
      Registers registers{lexer_.ExpectWord("a register"), 0, 0, WidthOf(type)};
      registers.first = static_cast<int>(body_.registers.size());
      if (lexer_.Eat('<')) {
        registers.count = static_cast<int>(Unsigned(&lexer_, lexer_.Word()));
        lexer_.Expect('>');
      }
      body_.registers.resize(body_.registers.size() + std::max(registers.count, 1),
                             registers.width);
      scopes_.back().registers.push_back(registers);
    } while (lexer_.Eat(','));
    lexer_.Expect(';');
    body_.register_names.resize(body_.registers.size());
  }

  // ".loc 2 76 5, function_name $L__info_string0, inlined_at 1 123 3"
  void ParseLocation() {
    Position position;
    uint64_t key = 0;
    const auto read = [&] {
      const auto file = Unsigned(&lexer_, lexer_.Word());
      const auto line = Unsigned(&lexer_, lexer_.Word());
      key = file << 48 | line << 16 | Unsigned(&lexer_, lexer_.Word());
      return std::pair(static_cast<int>(file), static_cast<int>(line));
    };
    std::tie(position.file, position.line) = read();
    const uint64_t own = key;
    while (lexer_.Eat(',')) {
      if (lexer_.Word() == "inlined_at") {
        read();
        if (const auto found = located_.find(key); found != located_.end()) {
          position.inlined_at = found->second;
        }
      } else {
        lexer_.Word();
        if (lexer_.Eat('+')) lexer_.Word();
      }
    }
    located_[own] = static_cast<int>(body_.positions.size());
    body_.positions.push_back(position);
  }

  void ParseStatement() {
    Statement statement;
    statement.position = static_cast<int>(body_.positions.size()) - 1;
    if (lexer_.Eat('@')) {
      statement.guard_negated = lexer_.Eat('!');
      statement.guard = FindRegister(lexer_.ExpectWord("a predicate"));
      if (statement.guard < 0) lexer_.Fail("the guard is not a register");
    }
    const std::string_view word = lexer_.ExpectWord("an instruction");
    statement.line = lexer_.line();
    if (lexer_.Eat(':')) {
      label_ = word;
      body_.labels[word] = static_cast<int>(body_.statements.size());
      return;
    }
    statement.opcode = word;
    if (lexer_.Peek() != ';') {
      do {
        statement.operands.push_back(ParseOperand());
      } while (lexer_.Eat(','));
    }
    lexer_.Expect(';');
    body_.statements.push_back(std::move(statement));
  }

  Operand ParseOperand() {
    const char c = lexer_.Peek();
    if (c == '{' || c == '(') return ParseVector(c == '{' ? '}' : ')');
    if (c == '[') return ParseAddress();
    if (c == '-' || (c >= '0' && c <= '9')) return lexer_.Number();
    Operand operand;
    operand.negated = lexer_.Eat('!');
    const std::string_view word = lexer_.ExpectWord("an operand");
    if (word == "_") return operand;
    operand.reg = FindRegister(word);
    if (operand.reg >= 0) {
      operand.kind = Operand::Kind::kRegister;
      if (lexer_.Eat('|')) operand.second = FindRegister(lexer_.Word());
      return operand;
    }
    const bool special = word[0] == '%' || word == "WARP_SZ";
    operand.kind = special ? Operand::Kind::kSpecial : Operand::Kind::kSymbol;
    operand.symbol = word;
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend() && operand.variable < 0; ++scope) {
      const auto found = scope->variables.find(word);
      if (found != scope->variables.end()) operand.variable = found->second;
    }
    if (lexer_.Eat('+')) operand.value = lexer_.Number().value;
    return operand;
  }

  Operand ParseVector(char end) {
    Operand operand;
    operand.kind = Operand::Kind::kVector;
    lexer_.Eat(end == '}' ? '{' : '(');
    if (lexer_.Eat(end)) return operand;
    do {
      operand.elements.push_back(ParseOperand());
    } while (lexer_.Eat(','));
    lexer_.Expect(end);
    return operand;
  }

  Operand ParseAddress() {
    lexer_.Expect('[');
    Operand operand = ParseOperand();
    if (operand.kind == Operand::Kind::kVector) lexer_.Fail("expected an address");
    operand.kind = Operand::Kind::kAddress;
    if (lexer_.Eat('+')) operand.value += lexer_.Number().value;
    lexer_.Expect(']');
    return operand;
  }

  int FindRegister(std::string_view name) {
    size_t digits = name.size();
    while (digits > 0 && name[digits - 1] >= '0' && name[digits - 1] <= '9') --digits;
    int number = 0;
    if (name.size() - digits <= 8) {
      for (size_t i = digits; i < name.size(); ++i) number = 10 * number + (name[i] - '0');
    }
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      for (const Registers& registers : scope->registers) {
        int found = -1;
        if (registers.count == 0) {
          if (registers.name == name) found = registers.first;
        } else if (registers.name == name.substr(0, digits) && digits < name.size() &&
                   number < registers.count) {
          found = registers.first + number;
        }
        if (found < 0) continue;
        body_.register_names[found] = name;
        return found;
      }
    }
    return -1;
  }

  Lexer lexer_;
  Body body_;
  std::vector<Scope> scopes_;
  std::string_view label_;                     // the last
  std::unordered_map<uint64_t, int> located_;  // by file, line and column
};

}  // namespace

Body ParseBody(const Function& function) { return BodyParser(function).Parse(); }

std::unique_ptr<Module> ParseModule(std::string text) {
  auto module = std::make_unique<Module>();
  module->text = std::move(text);
  Lexer lexer(module->text, 1);
  bool external = false;
  while (lexer.Peek() != 0) {
    const std::string_view word = lexer.ExpectWord("a directive");
    if (word == ".version" || word == ".target" || word == ".address_size") {
      lexer.Until('\n');
    } else if (word == ".visible" || word == ".weak" || word == ".common") {
      continue;
    } else if (word == ".extern") {
      external = true;
    } else if (word == ".entry" || word == ".func") {
      Function function = ParseFunction(&lexer, word == ".entry");
      // A function can be declared before it is defined.
      Function& known = module->functions[function.name];
      if (known.name.empty() || known.external) known = std::move(function);
      external = false;
    } else if (const Space* space = SpaceNamed(word); space != nullptr) {
      do {
        module->variables.push_back(ParseVariable(&lexer, *space));
        module->variables.back().external = external;
      } while (lexer.Eat(','));
      lexer.Expect(';');
      external = false;
    } else if (word == ".file") {
      const auto number = static_cast<int>(Unsigned(&lexer, lexer.Word()));
      lexer.Expect('"');
      module->files[number] = lexer.Until('"');
      while (lexer.Eat(',')) lexer.Word();  // its time and size
    } else if (word == ".section") {
      lexer.Until('{');
      lexer.Block();
    } else if (word == ".pragma" || word == ".alias") {
      lexer.Until(';');
    } else {
      lexer.Fail("'" + std::string(word) + "' is not implemented");
    }
  }
  return module;
}

const Variable* Module::FindVariable(std::string_view name) const {
  for (const Variable& variable : variables) {
    if (variable.name == name) return &variable;
  }
  return nullptr;
}

std::string DescribePosition(const Module& module, const Body& body, int position) {
  std::string text;
  while (position >= 0) {
    const Position& at = body.positions[position];
    const auto file = module.files.find(at.file);
    if (!text.empty()) text += ", inlined at ";
    text +=
        file != module.files.end() ? std::string(file->second) : "file " + std::to_string(at.file);
    text += ":" + std::to_string(at.line);
    position = at.inlined_at < position ? at.inlined_at : -1;
  }
  return text;
}

}  // namespace ptx
}  // namespace cudasim
