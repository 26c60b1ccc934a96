#include "data/tokenizer/word_counts.h"

#include <atomic>
#include <mutex>

#include "core/thread_pool.h"

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
