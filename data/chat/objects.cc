#include "data/chat/objects.h"

#include <ctime>

namespace lockstep::data::chat {

std::optional<Value> NamespaceObject::Attribute(const std::string& name) {
  const auto it = attributes_.find(name);
  return it == attributes_.end() ? std::nullopt : std::optional(it->second);
}

void NamespaceObject::Set(const std::string& name, Value value) {
  if (name.starts_with('_')) {
    Fail("an attribute of a namespace must not begin with an underscore: '", name, "'");
  }
  attributes_[name] = std::move(value);
}

LoopObject::LoopObject(List items, Condition accepts)
    : items_(std::move(items)),
      accepts_(std::move(accepts)),
      cycle_([this](const Arguments& arguments) { return Cycle(arguments); }),
      changed_([this](const Arguments& arguments) { return Value::Bool(Changed(arguments)); }) {}

bool LoopObject::Pull() {
  while (tried_ < items_.size()) {
    const Value& item = items_[tried_++];
    if (accepts_ && !accepts_(item)) continue;
    ahead_.push_back(item);
    return true;
  }
  return false;
}

bool LoopObject::IsLast() { return ahead_.empty() && !Pull(); }

bool LoopObject::Next() {
  if (IsLast()) return false;
  previous_ = std::exchange(current_, ahead_.front());
  ahead_.pop_front();
  ++index_;
  return true;
}

void LoopObject::Finish() {
  items_.clear();
  items_.shrink_to_fit();
  ahead_.clear();
  accepts_ = nullptr;
  last_changed_.reset();
  tried_ = 0;
}

int64_t LoopObject::Length() {
  while (Pull()) continue;
  return index_ + 1 + static_cast<int64_t>(ahead_.size());
}

std::optional<Value> LoopObject::Attribute(const std::string& name) {
  if (name == "index") return Value::Int(index_ + 1);
  if (name == "index0") return Value::Int(index_);
  if (name == "first") return Value::Bool(index_ == 0);
  if (name == "last") return Value::Bool(IsLast());
  if (name == "length") return Value::Int(Length());
  if (name == "revindex") return Value::Int(Length() - index_);
  if (name == "revindex0") return Value::Int(Length() - index_ - 1);
  if (name == "previtem") {
    return index_ == 0 ? Value::Undefined("there is no previous item") : previous_;
  }
  if (name == "nextitem") {
    return IsLast() ? Value::Undefined("there is no next item") : ahead_.front();
  }
  if (name == "depth") return Value::Int(1);
  if (name == "depth0") return Value::Int(0);
  if (name == "cycle") return Value::Of(&cycle_);
  if (name == "changed") return Value::Of(&changed_);
  return std::nullopt;
}

Value LoopObject::Cycle(const Arguments& arguments) const {
  if (arguments.positional.empty()) Fail("loop.cycle needs the values to cycle through");
  return arguments.positional[static_cast<size_t>(index_) % arguments.positional.size()];
}

bool LoopObject::Changed(const Arguments& arguments) {
  const Value values = Value::Of(Kind::kTuple, arguments.positional);
  const bool changed = !last_changed_ || !Equal(Value::Of(Kind::kTuple, *last_changed_), values);
  last_changed_ = arguments.positional;
  return changed;
}

Value Range(const Arguments& arguments) {
  constexpr int64_t kMostElements = 100'000;  // as in Jinja's sandbox
  const auto bound = arguments.Bind("range", {"start", "stop", "step"}, 1);
  const int64_t first = RequireInteger(*bound[0], "the start of range");
  const int64_t start = bound[1] ? first : 0;
  const int64_t stop = bound[1] ? RequireInteger(*bound[1], "the stop of range") : first;
  const int64_t step = IntegerOr(bound[2], 1, "the step of range");
  if (step == 0) Fail("the step of range must not be zero");
  List numbers;
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (numbers.size() == kMostElements) {
      Fail("range has more than ", kMostElements, " elements");
    }
    numbers.push_back(Value::Int(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return Value::Of(Kind::kRange, std::move(numbers));
}

Value MakeDict(const Arguments& arguments) {
  if (arguments.positional.size() > 1) Fail("dict takes at most one argument without a name");
  std::vector<std::pair<Value, Value>> items;
  if (!arguments.positional.empty()) {
    const Value& given = arguments.positional[0];
    RequireDefined(given);
    for (const Value& pair : given.Is(Kind::kDict) ? ItemPairs(given) : Iterate(given)) {
      const List parts = Iterate(pair);
      if (parts.size() != 2) Fail("dict needs pairs of a key and a value");
      items.emplace_back(parts[0], parts[1]);
    }
  }
  for (const auto& [name, value] : arguments.named) items.emplace_back(Value::String(name), value);
  return Value::Mapping(items);
}

Value StrftimeNow(const Arguments& arguments, int64_t now) {
  const auto bound = arguments.Bind("strftime_now", {"format"}, 1);
  const std::string& format = RequireText(*bound[0], "the format of strftime_now");
  if (format.empty()) return Value::String("");
  const std::time_t time = now;
  std::tm parts{};
  if (localtime_r(&time, &parts) == nullptr) Fail("strftime_now: there is no such time");
  RequireTextFits(1024 + 16 * format.size());
  std::string text(1024 + 16 * format.size(), '\0');
  // The space keeps the result from being empty, which would look like a failure.
  const size_t size = std::strftime(text.data(), text.size(), (format + " ").c_str(), &parts);
  if (size == 0) Fail("strftime_now: the text is too long");
  text.resize(size - 1);
  return Value::String(std::move(text));
}

void RaiseException(const Arguments& arguments) {
  const auto bound = arguments.Bind("raise_exception", {"message"}, 1);
  Fail("the template raises an exception: ", Str(*bound[0]));
}

}  // namespace lockstep::data::chat
