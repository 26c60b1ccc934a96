#include "data/tokenizer/document_marks.h"

namespace lockstep::data {

DocumentMarks MarksOf(const Tokenizer& tokenizer, bool nanogpt) {
  const std::optional<int32_t> end = tokenizer.end_of_text();
  DocumentMarks marks;
  marks.before = tokenizer.special_ids().before;
  if (end && marks.before == std::vector{*end}) marks.before.clear();  // one token is both
  const bool has_bos = !marks.before.empty();
  if (end) (has_bos || nanogpt ? marks.after : marks.before).push_back(*end);
  if (nanogpt) {
    marks.separator = end;
  } else if (!marks.before.empty()) {
    marks.separator = marks.before.front();
  }
  return marks;
}

}  // namespace lockstep::data
