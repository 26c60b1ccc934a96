#include "data/tokenizer/training/word_counts.h"

#include <atomic>
#include <memory>
#include <mutex>

#include "core/error.h"
#include "core/io/json.h"
#include "core/thread_pool.h"
#include "data/tokenizer/json_object.h"
#include "data/tokenizer/normalizer.h"
#include "data/tokenizer/pre_tokenizer.h"
#include "data/utf8.h"

namespace lockstep::data {
namespace {

constexpr size_t kMaxWordsPerThread = size_t{1} << 17;
constexpr size_t kPieceBytes = size_t{1} << 16;

bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// Adds the counts of `from`, which is empty afterwards.
void MoveCounts(WordCounts* from, WordCounts* to) {
  to->merge(*from);  // leaves the words that both have
  for (const auto& [word, count] : *from) to->find(word)->second += count;
  from->clear();
}

}  // namespace

WordSplitter MakeWordSplitter(const OrderedJson& pre_tokenizer, const OrderedJson& normalizer) {
  const Json cut = pre_tokenizer, normal = normalizer;
  const auto cutter = std::make_shared<PreTokenizer>(JsonObject(cut, "pre_tokenizer"));
  const auto normalize = normal.is_null()
                             ? std::make_shared<Normalizer>()
                             : std::make_shared<Normalizer>(JsonObject(normal, "normalizer"));
  if (!cutter->byte_level()) {
    throw InputError(
        "pre_tokenizer: a byte-level vocabulary is trained on the words of a ByteLevel "
        "pre-tokenizer; add {\"type\": \"ByteLevel\", \"use_regex\": false} as the last of a "
        "Sequence");
  }
  return [cutter, normalize](std::string_view text,
                             const std::function<void(std::string_view)>& sink) {
    std::string buffer;
    for (auto place = PreTokenizer::Place::kStart; !text.empty();
         place = PreTokenizer::Place::kBehindToken) {
      const size_t valid = ValidUtf8Prefix(text);
      cutter->Cut(normalize->Apply(text.substr(0, valid), &buffer), place, sink);
      text.remove_prefix(valid);
      size_t malformed = 0;
      while (malformed < text.size() && DecodeUtf8(text, malformed).length == 0) ++malformed;
      if (malformed > 0) sink(text.substr(0, malformed));
      text.remove_prefix(malformed);
    }
  };
}

WordCounts CountWords(const TextSource& source, const WordSplitter& split) {
  WordCounts all;
  std::mutex source_mutex, all_mutex;
  std::atomic<bool> ended = false;
  const auto count_texts = [&] {
    WordCounts own;
    const auto flush = [&] {
      const std::lock_guard lock(all_mutex);
      MoveCounts(&own, &all);
    };
    const auto add = [&](std::string_view word) {
      const auto it = own.find(word);
      if (it != own.end()) {
        ++it->second;
        return;
      }
      if (own.size() >= kMaxWordsPerThread) flush();
      own.emplace(word, 1);
    };
    const auto next = [&](std::string* text) {
      const std::lock_guard lock(source_mutex);
      if (!ended && !source(text)) ended = true;
      return !ended;
    };
    for (std::string text; next(&text);) split(text, add);
    flush();
  };
  ParallelFor(NumThreads(), 1, [&](int64_t, int64_t) {
    try {
      count_texts();
    } catch (...) {
      ended = true;
      throw;
    }
  });
  return all;
}

TextSource PiecesOf(std::string_view text) {
  return [text](std::string* piece) mutable {
    if (text.empty()) return false;
    size_t cut = kPieceBytes;
    const auto may_cut = [&] {
      return text[cut] == ' ' && IsLetter(text[cut - 1]) && IsLetter(text[cut + 1]);
    };
    while (cut + 1 < text.size() && !may_cut()) ++cut;
    if (cut + 1 >= text.size()) cut = text.size();
    piece->assign(text.substr(0, cut));
    text.remove_prefix(cut);
    return true;
  };
}

}  // namespace lockstep::data
