#include "models/evaluate/request_encoder.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/io/json.h"
#include "models/evaluate/python_text.h"

namespace lockstep::models {
namespace {

std::optional<int32_t> PrefixOf(const data::Tokenizer& tokenizer) {
  const data::SpecialIds ids = tokenizer.special_ids();
  if (ids.bos) return ids.bos;
  return ids.eos ? ids.eos : tokenizer.end_of_text();
}

}  // namespace

RequestEncoder::RequestEncoder(const data::Tokenizer& tokenizer, int64_t block_size,
                               int64_t vocab_size)
    : tokenizer_(tokenizer),
      block_size_(block_size),
      vocab_size_(vocab_size),
      prefix_(PrefixOf(tokenizer)) {}

std::vector<int32_t> RequestEncoder::Encode(std::string_view text) const {
  std::vector<int32_t> ids = tokenizer_.EncodeWithSpecials(text);
  // The harness leaves out what comes before and after a text that begins with the prefix's text.
  if (prefix_ && text.starts_with(tokenizer_.Decode({&*prefix_, 1}))) return ids;
  const data::SpecialIds special = tokenizer_.special_ids();
  ids.insert(ids.begin(), special.before.begin(), special.before.end());
  ids.insert(ids.end(), special.after.begin(), special.after.end());
  return ids;
}

ScoreRequest RequestEncoder::Cut(std::vector<int32_t> ids, int64_t scored, int64_t most) const {
  if (std::ssize(ids) > most) ids.erase(ids.begin(), ids.end() - most);
  for (const int32_t id : ids) {
    if (id < vocab_size_) continue;
    throw InputError(StrCat("token ", id, " is not in the model's vocabulary of ", vocab_size_,
                            ": the tokenizer belongs to another model"));
  }
  return {std::move(ids), scored};
}

ScoreRequest RequestEncoder::Pair(std::string_view context, std::string_view continuation) const {
  std::vector<int32_t> ids;
  int64_t scored = 0;
  if (context.empty()) {
    ids = tokenizer_.EncodeWithSpecials(continuation);
    if (!prefix_) {
      throw InputError("the tokenizer has no bos or eos token to stand for an empty context");
    }
    if (ids.empty() || ids[0] != *prefix_) ids.insert(ids.begin(), *prefix_);
    scored = std::ssize(ids) - 1;
  } else {
    const std::string_view stripped = StripRight(context);
    ids = Encode(std::string(context) + std::string(continuation));
    scored = std::ssize(ids) - std::ssize(Encode(stripped));
  }
  if (scored <= 0 || scored > block_size_) {
    throw InputError(StrCat("the text ", Quoted(continuation), " after a context is ",
                            std::max<int64_t>(scored, 0), " tokens, and must be 1 to ", block_size_,
                            ", the model's context"));
  }
  return Cut(std::move(ids), scored, block_size_ + 1);
}

std::vector<ScoreRequest> RequestEncoder::Rolling(std::string_view text) const {
  std::vector<int32_t> ids = tokenizer_.EncodeWithSpecials(text);
  if (prefix_ && (ids.empty() || ids[0] != *prefix_)) ids.insert(ids.begin(), *prefix_);
  std::vector<ScoreRequest> windows;
  const int64_t n = std::ssize(ids);
  for (int64_t done = 1; done < n;) {
    const int64_t scored = std::min(n - done, block_size_);
    // A whole window before the end of what it scores, where there is one.
    const int64_t end = done + scored, begin = std::max<int64_t>(0, end - block_size_ - 1);
    windows.push_back(Cut({ids.begin() + begin, ids.begin() + end}, scored, block_size_ + 1));
    done = end;
  }
  return windows;
}

std::vector<int32_t> RequestEncoder::Prompt(std::string_view text, int64_t tokens) const {
  const int64_t most = block_size_ - tokens;
  if (most <= 0) {
    throw InputError(StrCat("an answer of up to ", tokens, " tokens leaves no room for a question ",
                            "in the model's context of ", block_size_));
  }
  return Cut(Encode(text), 0, most).ids;
}

std::vector<int32_t> RequestEncoder::Plain(std::string_view text) const {
  std::vector<int32_t> ids = tokenizer_.Encode(text);
  if (prefix_) ids.insert(ids.begin(), *prefix_);
  return ids;
}

ScoreRequest RequestEncoder::Range(std::vector<int32_t> ids, int64_t begin) const {
  // All of a sequence goes into the model there, its last token too.
  const int64_t n = std::ssize(ids), cut = std::max<int64_t>(0, n - block_size_);
  return Cut(std::move(ids), n - std::max(begin, cut + 1), block_size_);
}

}  // namespace lockstep::models
