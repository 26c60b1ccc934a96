// Runs a parsed template.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "data/chat/syntax.h"
#include "data/chat/value.h"

namespace lockstep::data::chat {

// Bytes [begin, end) of the text.
struct ByteSpan {
  int64_t begin = 0, end = 0;
};

struct RenderedText {
  std::string text;
  std::vector<ByteSpan> generation;
};

using Variables = std::vector<std::pair<std::string, Value>>;

// Within the current budget. `now`: seconds since 1970, for strftime_now. Throws LocatedFailure.
RenderedText Evaluate(const Syntax& syntax, Variables variables, int64_t now);

}  // namespace lockstep::data::chat
