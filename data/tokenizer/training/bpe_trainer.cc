#include "data/tokenizer/training/bpe_trainer.h"

#include <algorithm>
#include <array>
#include <limits>
#include <queue>
#include <set>
#include <tuple>
#include <utility>

#include "core/error.h"
#include "core/io/json.h"
#include "data/tokenizer/bpe_json.h"
#include "data/tokenizer/byte_alphabet.h"
#include "data/tokenizer/split_pattern.h"
#include "data/tokenizer/training/pair_map.h"
#include "data/utf8.h"

namespace lockstep::data {
namespace {

// A token arises by one merge only, because equal strings that no token border or merge has yet
// crossed are always divided alike: the merge that completes one completes all. So a pair occurs
// for the first time when the younger of its tokens arises, and from then on ever more rarely.
// Its places are listed once, in ascending order, and a heap may hold outdated counts: they are
// too high, and are corrected when they come to the top.
class Trainer {
 public:
  Trainer(const WordCounts& words, const BpeTrainerOptions& options);
  TrainedBpe Run();

 private:
  static constexpr int32_t kBorder = -1;  // between words
  static constexpr int32_t kInside = -2;  // neither the first nor the last byte of its token

  struct Place {
    uint32_t slot;  // of the left token's first byte
    uint32_t word;
  };
  struct Pair {
    int64_t count = 0;
    std::vector<Place> places;  // every occurrence, and some that merges have consumed since
  };
  struct Candidate {
    int64_t count;
    int32_t left, right;
    bool operator<(const Candidate& other) const {
      return std::tie(count, other.left, other.right) < std::tie(other.count, left, right);
    }
  };

  void AddToken(std::string bytes);
  void AddWords(const WordCounts& words);
  void AddPair(int32_t left, int32_t right, Place place);
  void RemovePair(int32_t left, int32_t right, uint32_t word);
  void QueueNewPairs();
  void Merge(int32_t left, int32_t right);

  const BpeTrainerOptions& options_;
  const int64_t min_count_;
  TrainedBpe bpe_;
  std::vector<uint32_t> lengths_;  // id -> bytes
  std::array<int32_t, 256> byte_ids_;

  // The distinct words, one slot per byte, with a border before, between and after them. The first
  // and the last slot of a token hold its id, so the neighbours of a token are found without links.
  std::vector<int32_t> slots_;
  std::vector<int64_t> word_counts_;
  PairMap<Pair> pairs_;
  std::vector<std::pair<int32_t, int32_t>> new_pairs_;  // those that heap_ does not have yet
  std::priority_queue<Candidate> heap_;
};

void CheckOptions(const BpeTrainerOptions& options) {
  const auto num_special = static_cast<int64_t>(options.special_tokens.size());
  LS_CHECK(options.vocab_size >= num_special + 256 && options.vocab_size <= INT32_MAX,
           "TrainBpe: vocab_size is ", options.vocab_size, ", but must be from ", num_special + 256,
           " (", num_special, " special tokens and the 256 bytes) to ", INT32_MAX);
  std::set<std::string> seen;
  for (const std::string& token : options.special_tokens) {
    LS_CHECK(CountUtf8(token.substr(0, ValidUtf8Prefix(token))) > 1 &&
                 ValidUtf8Prefix(token) == token.size(),
             "TrainBpe: the special token ", Quoted(token),
             " must be well-formed UTF-8 of at least two characters");
    LS_CHECK(seen.insert(token).second, "TrainBpe: the special token ", Quoted(token),
             " is given twice");
  }
}

Trainer::Trainer(const WordCounts& words, const BpeTrainerOptions& options)
    : options_(options), min_count_(std::max<int64_t>(options.min_frequency, 1)) {
  CheckOptions(options);
  for (const std::string& token : options.special_tokens) AddToken(token);
  bpe_.num_special = static_cast<int64_t>(options.special_tokens.size());
  std::vector<std::pair<std::string, int>> alphabet;
  for (int byte = 0; byte < 256; ++byte) {
    alphabet.emplace_back(BytesToPrintable(std::string(1, static_cast<char>(byte))), byte);
  }
  std::ranges::sort(alphabet);  // UTF-8 sorts by code point
  for (const auto& [printable, byte] : alphabet) {
    byte_ids_[byte] = static_cast<int32_t>(bpe_.tokens.size());
    AddToken(std::string(1, static_cast<char>(byte)));
  }
  AddWords(words);
}

void Trainer::AddToken(std::string bytes) {
  lengths_.push_back(static_cast<uint32_t>(bytes.size()));
  bpe_.tokens.push_back(std::move(bytes));
}

void Trainer::AddWords(const WordCounts& words) {
  uint64_t slots = 1;
  for (const auto& [word, count] : words) slots += word.size() + 1;
  if (slots > std::numeric_limits<uint32_t>::max()) {
    throw InputError(StrCat("TrainBpe: the ", words.size(), " distinct words have ", slots,
                            " bytes; at most 4 GiB can be trained on. Train on a sample of the "
                            "text, or with a pre-tokenizer that cuts it into shorter words"));
  }
  slots_.reserve(slots);
  slots_.push_back(kBorder);
  word_counts_.reserve(words.size());
  int64_t total = 0;
  for (const auto& [word, count] : words) {
    int64_t bytes = 0;
    LS_CHECK(count >= 0 &&
                 !__builtin_mul_overflow(count, static_cast<int64_t>(word.size()), &bytes) &&
                 !__builtin_add_overflow(total, bytes, &total),
             "TrainBpe: the count ", count, " of the word ", Quoted(word),
             " is negative, or the words have more than 2^63 bytes in all");
    if (count == 0) continue;
    const auto index = static_cast<uint32_t>(word_counts_.size());
    word_counts_.push_back(count);
    for (const char byte : word) {
      const int32_t left = slots_.back(), id = byte_ids_[static_cast<uint8_t>(byte)];
      if (left != kBorder) {
        AddPair(left, id, {static_cast<uint32_t>(slots_.size() - 1), index});
      }
      slots_.push_back(id);
    }
    slots_.push_back(kBorder);
  }
  QueueNewPairs();
}

void Trainer::AddPair(int32_t left, int32_t right, Place place) {
  const auto [pair, added] = pairs_.FindOrAdd(left, right);
  if (added) new_pairs_.emplace_back(left, right);
  pair->count += word_counts_[place.word];
  pair->places.push_back(place);
}

void Trainer::RemovePair(int32_t left, int32_t right, uint32_t word) {
  if (Pair* pair = pairs_.Find(left, right)) pair->count -= word_counts_[word];
}

void Trainer::QueueNewPairs() {
  for (const auto& [left, right] : new_pairs_) {
    const int64_t count = pairs_.Find(left, right)->count;
    if (count < min_count_) {
      pairs_.Erase(left, right);  // for good, since counts never rise again
    } else {
      heap_.push({count, left, right});
    }
  }
  new_pairs_.clear();
}

void Trainer::Merge(int32_t left, int32_t right) {
  const auto merged = static_cast<int32_t>(bpe_.tokens.size());
  bpe_.merges.push_back({left, right, merged});
  AddToken(bpe_.tokens[left] + bpe_.tokens[right]);
  const std::vector<Place> places = std::move(pairs_.Find(left, right)->places);
  pairs_.Erase(left, right);
  for (const auto [first, word] : places) {
    if (slots_[first] != left) continue;
    const uint32_t middle = first + lengths_[left];
    if (slots_[middle] != right) continue;
    const uint32_t end = middle + lengths_[right];
    if (const int32_t before = slots_[first - 1]; before != kBorder) {
      RemovePair(before, left, word);
      AddPair(before, merged, {first - lengths_[before], word});
    }
    if (const int32_t after = slots_[end]; after != kBorder) {
      RemovePair(right, after, word);
      AddPair(merged, after, {first, word});
    }
    slots_[middle - 1] = slots_[middle] = kInside;
    slots_[first] = slots_[end - 1] = merged;
  }
  QueueNewPairs();
}

TrainedBpe Trainer::Run() {
  const std::set<std::string> special(options_.special_tokens.begin(),
                                      options_.special_tokens.end());
  const auto size = [this] { return static_cast<int64_t>(bpe_.tokens.size()); };
  while (size() < options_.vocab_size && !heap_.empty()) {
    const Candidate top = heap_.top();
    heap_.pop();
    const int64_t count = pairs_.Find(top.left, top.right)->count;
    if (count < min_count_) {
      pairs_.Erase(top.left, top.right);
    } else if (count < top.count) {
      heap_.push({count, top.left, top.right});
    } else {
      Merge(top.left, top.right);
      const std::string printable = BytesToPrintable(bpe_.tokens.back());
      if (special.contains(printable)) {
        throw InputError(StrCat("TrainBpe: the text has ", Quoted(bpe_.tokens.back()),
                                " so often that it becomes a token, but the special token ",
                                Quoted(printable),
                                " has the same name in tokenizer.json; give "
                                "that special token another text, such as <|",
                                printable, "|>"));
      }
    }
  }
  if (size() < options_.vocab_size && !options_.allow_fewer) {
    throw InputError(StrCat("TrainBpe: the text is too small for a vocabulary of ",
                            options_.vocab_size, ": after ", size(),
                            " tokens, no two adjacent tokens occur together ", min_count_,
                            " times or more. Ask for at most ", size(),
                            " tokens (prepare --train_tokenizer=", size(), "), or give more text"));
  }
  return std::move(bpe_);
}

}  // namespace

TrainedBpe TrainBpe(const WordCounts& words, const BpeTrainerOptions& options) {
  return Trainer(words, options).Run();
}

OrderedJson NamedPreTokenizer(std::string_view name) {
  if (name == "gpt2") return Gpt2PreTokenizer();
  OrderedJson bytes = Gpt2PreTokenizer();
  bytes["use_regex"] = false;
  const OrderedJson split = {{"type", "Split"},
                             {"pattern", {{"Regex", NamedSplitPattern(name)}}},
                             {"behavior", "Isolated"},
                             {"invert", false}};
  return {{"type", "Sequence"}, {"pretokenizers", OrderedJson::array({split, bytes})}};
}

OrderedJson Gpt2PreTokenizer() { return ByteLevelJson<OrderedJson>(/*add_prefix_space=*/false); }

std::string ToHuggingFaceJson(const TrainedBpe& bpe, const OrderedJson& pre_tokenizer,
                              const OrderedJson& normalizer) {
  OrderedJson added = OrderedJson::array(), vocab = OrderedJson::object(),
              merges = OrderedJson::array();
  std::vector<std::string> printable;
  for (size_t id = 0; id < bpe.tokens.size(); ++id) {
    const bool special = static_cast<int64_t>(id) < bpe.num_special;
    printable.push_back(special ? bpe.tokens[id] : BytesToPrintable(bpe.tokens[id]));
    if (!special) continue;
    added.push_back(SpecialTokenJson<OrderedJson>(id, bpe.tokens[id]));
  }
  // The search for a key is linear, so the vocabulary is appended, not inserted.
  OrderedJson::Object& entries = vocab.items();
  entries.reserve(printable.size());
  for (size_t id = 0; id < printable.size(); ++id) {
    entries.emplace_back(printable[id], id);
  }
  for (const BpeMerge& merge : bpe.merges) {
    merges.push_back({printable[merge.left], printable[merge.right]});
  }
  const OrderedJson json = ByteLevelBpeJson<OrderedJson>(
      std::move(vocab), std::move(merges), std::move(added), normalizer, pre_tokenizer,
      ByteLevelJson<OrderedJson>(/*add_prefix_space=*/true));
  return json.dump(2) + "\n";
}

}  // namespace lockstep::data
