#include "data/prepare/train_tokenizer.h"

#include <algorithm>

#include "core/error.h"
#include "core/io/json.h"
#include "data/tokenizer/training/bpe_trainer.h"
#include "data/tokenizer/training/word_counts.h"

namespace lockstep::data {
namespace {

// Of large files; enough for all threads.
constexpr int64_t kPieceBytes = int64_t{1} << 24;

}  // namespace

std::unique_ptr<Tokenizer> TrainTokenizer(const std::vector<std::string>& files,
                                          const TextOptions& options,
                                          const TokenizerTraining& training) {
  BpeTrainerOptions bpe_options{.vocab_size = training.vocab_size};
  for (const std::string& token : training.special_tokens) {
    if (token.empty() ||
        std::ranges::find(bpe_options.special_tokens, token) != bpe_options.special_tokens.end()) {
      throw InputError(StrCat("special_tokens: ", Quoted(token),
                              " is empty, or a special token already; name each only once, and "
                              "leave <|endoftext|>, which is always there, out"));
    }
    bpe_options.special_tokens.push_back(token);
  }
  const auto pre_tokenizer = NamedPreTokenizer(training.split_pattern);
  TextOptions in_pieces = options;
  in_pieces.piece_bytes = kPieceBytes;
  DocumentReader reader(files, in_pieces);
  std::string document;
  TextSource pieces = PiecesOf("");
  // The pieces of one document after the other, so that all threads share a large one.
  const auto source = [&](std::string* text) {
    while (!pieces(text)) {
      RawDocument raw;
      if (!reader.Next(&raw)) return false;
      document = TextOf(std::move(raw), files, in_pieces).text;
      pieces = PiecesOf(document);
    }
    return true;
  };
  const WordCounts words = CountWords(source, MakeWordSplitter(pre_tokenizer, nullptr));
  const TrainedBpe bpe = TrainBpe(words, bpe_options);
  return Tokenizer::FromJson(ToHuggingFaceJson(bpe, pre_tokenizer, nullptr),
                             "the trained vocabulary");
}

}  // namespace lockstep::data
