#include "data/prepare/train_tokenizer.h"

#include <nlohmann/json.hpp>

#include "data/tokenizer/bpe_trainer.h"
#include "data/tokenizer/word_counts.h"

namespace lockstep::data {

std::unique_ptr<Tokenizer> TrainTokenizer(const std::vector<std::string>& files,
                                          const TextOptions& options, int64_t vocab_size) {
  DocumentReader reader(files, options);
  std::string document;
  TextSource pieces = PiecesOf("");
  // The pieces of one document after the other, so that all threads share a large one.
  const auto source = [&](std::string* text) {
    while (!pieces(text)) {
      RawDocument raw;
      if (!reader.Next(&raw)) return false;
      document = TextOf(std::move(raw), files, options).text;
      pieces = PiecesOf(document);
    }
    return true;
  };
  const WordCounts words = CountWords(source, MakeWordSplitter(Gpt2PreTokenizer(), nullptr));
  const TrainedBpe bpe = TrainBpe(words, {.vocab_size = vocab_size});
  return Tokenizer::FromJson(ToHuggingFaceJson(bpe, Gpt2PreTokenizer(), nullptr),
                             "the trained vocabulary");
}

}  // namespace lockstep::data
