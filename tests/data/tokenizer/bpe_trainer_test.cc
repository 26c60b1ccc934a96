#include "data/tokenizer/training/bpe_trainer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <set>

#include "core/io/file.h"
#include "core/io/json.h"
#include "core/io/sha256.h"
#include "data/corpus.h"
#include "data/tokenizer/byte_alphabet.h"
#include "data/tokenizer/tokenizer.h"
#include "tests/data/data_test_util.h"

namespace lockstep::data {
namespace {
using Sequences = std::vector<std::pair<std::vector<int32_t>, int64_t>>;  // ids, count
using Strings = std::vector<std::pair<std::string, std::string>>;

// The merges as text, in the byte alphabet.
Strings MergeStrings(const TrainedBpe& bpe) {
  Strings merges;
  for (const BpeMerge& merge : bpe.merges) {
    merges.emplace_back(BytesToPrintable(bpe.tokens[merge.left]),
                        BytesToPrintable(bpe.tokens[merge.right]));
  }
  return merges;
}

// The words as the ids of their bytes.
Sequences ByteSequences(const WordCounts& words, const TrainedBpe& bpe) {
  std::map<std::string, int32_t> ids;
  for (int32_t i = 0; i < 256; ++i) {
    ids[bpe.tokens[bpe.num_special + i]] = static_cast<int32_t>(bpe.num_special) + i;
  }
  Sequences sequences;
  for (const auto& [word, count] : words) {
    auto& [sequence, weight] = sequences.emplace_back();
    weight = count;
    for (const char c : word) sequence.push_back(ids.at(std::string(1, c)));
  }
  return sequences;
}

// Applies the merge from left to right, and returns how often it applied.
int64_t Apply(const BpeMerge& merge, Sequences* words) {
  int64_t applied = 0;
  for (auto& [ids, count] : *words) {
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      if (ids[i] != merge.left || ids[i + 1] != merge.right) continue;
      ids[i] = merge.result;
      ids.erase(ids.begin() + i + 1);
      applied += count;
    }
  }
  return applied;
}

// The definition: counts all pairs anew before every merge. `words` starts as single bytes.
std::vector<BpeMerge> NaiveMerges(Sequences words, const BpeTrainerOptions& options) {
  std::vector<BpeMerge> merges;
  int64_t size = static_cast<int64_t>(options.special_tokens.size()) + 256;
  for (; size < options.vocab_size; ++size) {
    std::map<std::pair<int32_t, int32_t>, int64_t> pairs;  // in the order of ids
    for (const auto& [ids, count] : words) {
      for (size_t i = 0; i + 1 < ids.size(); ++i) pairs[{ids[i], ids[i + 1]}] += count;
    }
    const auto best = std::ranges::max_element(
        pairs, {}, [](const auto& pair) { return pair.second; });  // the first of equal ones
    if (best == pairs.end()) break;
    if (best->second < std::max<int64_t>(options.min_frequency, 1)) break;
    merges.push_back({best->first.first, best->first.second, static_cast<int32_t>(size)});
    Apply(merges.back(), &words);
  }
  return merges;
}

std::vector<std::array<int32_t, 3>> Triples(const std::vector<BpeMerge>& merges) {
  std::vector<std::array<int32_t, 3>> triples;
  for (const BpeMerge& m : merges) triples.push_back({m.left, m.right, m.result});
  return triples;
}

WordSplitter Gpt2Words() { return MakeWordSplitter(Gpt2PreTokenizer(), nullptr); }

WordCounts Gpt2Counts(std::string_view text) { return CountWords(PiecesOf(text), Gpt2Words()); }

WordCounts RandomWords(std::mt19937* random) {
  const int letters = 1 + static_cast<int>((*random)() % 4);
  const int max_length = (*random)() % 2 ? 6 : 30;
  WordCounts words;
  for (int n = 1 + static_cast<int>((*random)() % 30); n > 0; --n) {
    std::string word(1 + (*random)() % max_length, ' ');
    for (char& c : word) c = static_cast<char>('a' + (*random)() % letters);
    words[word] += 1 + static_cast<int64_t>((*random)() % 5);
  }
  return words;
}

TEST(BpeTrainerTest, EqualsTheDefinitionOnRandomCorpora) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 300; ++trial) {
    const WordCounts words = RandomWords(&random);
    BpeTrainerOptions options = {.min_frequency = static_cast<int64_t>(random() % 4),
                                 .allow_fewer = true};
    if (random() % 2) options.special_tokens.push_back("<pad>");
    options.vocab_size = static_cast<int64_t>(options.special_tokens.size() + 256 + random() % 90);
    const TrainedBpe bpe = TrainBpe(words, options);
    ASSERT_EQ(Triples(bpe.merges), Triples(NaiveMerges(ByteSequences(words, bpe), options)))
        << "trial " << trial;
  }
}

// Made by tokenizers: tests/peers/train_bpe.py --goldens.
TEST(BpeTrainerTest, EqualsTokenizersOnTheEmbeddedCorpus) {
  const std::string file = TestData("bpe_training_goldens.json");
  const Json golden = ParseJson(ReadFile(file), file);
  const TrainedBpe bpe = TrainBpe(Gpt2Counts(EmbeddedCorpus()), {.vocab_size = 1000});
  Strings expected;
  for (const Json& merge : golden["merges"]) expected.emplace_back(merge[0], merge[1]);
  ASSERT_EQ(expected.size(), 1000 - 257);
  EXPECT_EQ(MergeStrings(bpe), expected);
  for (const auto& [id, token] : golden["tokens"].items()) {
    EXPECT_EQ(BytesToPrintable(bpe.tokens[std::stoi(id)]), token) << id;
  }
}

TEST(BpeTrainerTest, EqualsTokenizersOnTinyShakespeare) {
  const auto path = SharedData("tinyshakespeare.txt");
  if (!path) GTEST_SKIP() << "tinyshakespeare.txt is not part of Lockstep";
  const std::string file = TestData("bpe_training_goldens.json");
  const Json golden = ParseJson(ReadFile(file), file)["tinyshakespeare"];
  const WordCounts words = Gpt2Counts(ReadFile(*path));
  BpeTrainerOptions options = {.vocab_size = 20000, .special_tokens = {}};
  const std::string message = MessageOf<InputError>([&] { TrainBpe(words, options); });
  EXPECT_NE(message.find("too small for a vocabulary of 20000: after 12711 tokens"),
            std::string::npos)
      << message;
  options.allow_fewer = true;
  const TrainedBpe bpe = TrainBpe(words, options);
  EXPECT_EQ(bpe.tokens.size(), 12711);
  std::string lines;
  for (const auto& [left, right] : MergeStrings(bpe)) lines += left + " " + right + "\n";
  EXPECT_EQ(bpe.merges.size(), golden["merges"]);
  EXPECT_EQ(Sha256Of(lines), golden["sha256"]);
}

// Every merge applies as often as min_frequency demands, and no token arises twice. The tokenizer
// made of the vocabulary cuts each word as training left it.
TEST(BpeTrainerTest, ReplayFindsEveryMergeAndTheTokenizerAgrees) {
  const WordCounts words = Gpt2Counts(EmbeddedCorpus());
  const TrainedBpe bpe = TrainBpe(words, {.vocab_size = 3000, .min_frequency = 3});
  Sequences sequences = ByteSequences(words, bpe);
  for (const BpeMerge& merge : bpe.merges) {
    ASSERT_GE(Apply(merge, &sequences), 3) << merge.result;
    EXPECT_EQ(bpe.tokens[merge.result], bpe.tokens[merge.left] + bpe.tokens[merge.right]);
  }
  EXPECT_EQ(std::set(bpe.tokens.begin(), bpe.tokens.end()).size(), bpe.tokens.size());

  const std::string path = TestFolder() + "/tokenizer.json";
  WriteFileAtomically(path, ToHuggingFaceJson(bpe, Gpt2PreTokenizer(), nullptr));
  const auto tokenizer = LoadTokenizer(path);
  EXPECT_EQ(tokenizer->vocab_size(), 3000);
  EXPECT_EQ(tokenizer->end_of_text(), 0);
  for (const auto& [ids, count] : sequences) {
    ASSERT_EQ(tokenizer->Encode(tokenizer->Decode(ids)), ids);
  }
}

// tokenizers counts in 32 bits: there the pairs of this word have negative counts and never merge.
TEST(BpeTrainerTest, CountsHave64Bits) {
  const TrainedBpe bpe = TrainBpe({{"the", 3'000'000'000}, {"ox", 5}}, {.vocab_size = 260});
  EXPECT_EQ(MergeStrings(bpe), (Strings{{"h", "e"}, {"t", "he"}, {"o", "x"}}));
}

TEST(BpeTrainerTest, LongWordsTakeNearLinearTime) {
  const TrainedBpe bpe =
      TrainBpe({{std::string(size_t{1} << 21, 'a'), 1}}, {.vocab_size = 257 + 20});
  EXPECT_EQ(bpe.tokens.back(), std::string(size_t{1} << 20, 'a'));
}

TEST(BpeTrainerTest, AnyBytesAreWords) {
  const TrainedBpe bpe = TrainBpe({{std::string("\xff\x00\xff\x00", 4), 2}}, {.vocab_size = 258});
  EXPECT_EQ(bpe.tokens.back(), std::string("\xff\x00", 2));
}

TEST(BpeTrainerTest, SaysWhatIsWrong) {
  const auto message = [](const WordCounts& words, BpeTrainerOptions options) {
    return MessageOf([&] { TrainBpe(words, options); });
  };
  EXPECT_EQ(
      message({}, {.vocab_size = 256}),
      "TrainBpe: vocab_size is 256, but must be from 257 (1 special tokens and the 256 bytes) "
      "to 2147483647");
  EXPECT_NE(message({}, {.special_tokens = {"<s>", "<s>"}}).find("\"<s>\" is given twice"),
            std::string::npos);
  for (const char* bad : {"", "a", "\xc4\xa0", "ab\xff"}) {
    EXPECT_NE(message({}, {.special_tokens = {bad}}).find("must be well-formed UTF-8"),
              std::string::npos)
        << bad;
  }
  for (const int64_t bad : {int64_t{-1}, INT64_MAX}) {
    EXPECT_NE(message({{"word", bad}}, {}).find(StrCat("the count ", bad, " of the word \"word\"")),
              std::string::npos);
  }
  EXPECT_EQ(MessageOf<InputError>([] {
              TrainBpe({{"word", 2}, {"is", 1}}, {});
            }),
            "TrainBpe: the text is too small for a vocabulary of 32000: after 260 tokens, no two "
            "adjacent tokens occur together 2 times or more. Ask for at most 260 tokens (prepare "
            "--train_tokenizer=260), or give more text");
  EXPECT_EQ(MessageOf<InputError>([] {
              TrainBpe({{"PAD", 2}}, {.vocab_size = 260, .special_tokens = {"PAD"}});
            }),
            "TrainBpe: the text has \"PAD\" so often that it becomes a token, but the special "
            "token \"PAD\" has the same name in tokenizer.json; give that special token "
            "another text, such as <|PAD|>");
}

}  // namespace
}  // namespace lockstep::data
