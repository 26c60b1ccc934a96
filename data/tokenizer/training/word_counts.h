// How often each word occurs in a corpus: all that the training of a vocabulary needs to know.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "core/io/json.h"

namespace lockstep::data {

// A hash of strings that also takes views, so that a map is searched without copying the key.
struct WordHash {
  using is_transparent = void;
  size_t operator()(std::string_view word) const { return std::hash<std::string_view>()(word); }
};

// word (any bytes) -> its number of occurrences.
using WordCounts = std::unordered_map<std::string, int64_t, WordHash, std::equal_to<>>;

// Cuts a text into the words that no token crosses: calls `sink` with one after another. A splitter
// may normalize, so the words need not be views into `text`. It is called from several threads.
using WordSplitter =
    std::function<void(std::string_view text, const std::function<void(std::string_view)>& sink)>;

// The words of a byte-level tokenizer.json with these two fields (null for no normalizer).
// Malformed bytes are words of their own, as BpeTokenizer encodes them. Throws InputError for
// fields that Lockstep does not know, and for a pre-tokenizer without ByteLevel.
WordSplitter MakeWordSplitter(const OrderedJson& pre_tokenizer, const OrderedJson& normalizer);

// Moves the next text into `text`, or returns false after the last one.
using TextSource = std::function<bool(std::string* text)>;

// Counts the words of all texts of `source`, on all threads (NumThreads); `source` is called by one
// of them at a time. The counts do not depend on the number of threads. Holds one text per thread,
// the distinct words, and at most 2^17 of them again per thread. An exception of `source` or
// `split` ends the counting and is rethrown.
WordCounts CountWords(const TextSource& source, const WordSplitter& split);

// Cuts one long text, which must outlive the source, into pieces of about 64 KiB, so that all
// threads can count its words. Cuts only between an ASCII letter and a space that a letter follows:
// at such a place the patterns of GPT-2, GPT-4, Llama 3, Qwen and their relatives end a word and
// begin another, whatever precedes and follows. A splitter without that property needs the whole
// text at once.
TextSource PiecesOf(std::string_view text);

}  // namespace lockstep::data
