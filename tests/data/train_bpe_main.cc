// Trains a vocabulary per line of a file, and prints a line of JSON for each:
//   train_bpe REQUESTS.jsonl
// A request has "vocab_size", "min_frequency", "special_tokens", and either "words" (word -> count)
// or "texts", with "pre_tokenizer" and "normalizer". The answer has "tokenizer" (tokenizer.json)
// and "seconds". tests/peers/train_bpe.py compares them with tokenizers'.
#include <chrono>
#include <cstdio>
#include <iostream>
#include <sstream>

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/json.h"
#include "data/tokenizer/training/bpe_trainer.h"

namespace lockstep::data {
namespace {

WordCounts Words(const Json& request) {
  WordCounts words;
  if (!request.contains("texts")) {
    for (const auto& [word, count] : request.at("words").items()) words[word] = count;
    return words;
  }
  const Json& texts = request["texts"];
  return CountWords(
      [&, next = texts.begin()](std::string* text) mutable {
        if (next == texts.end()) return false;
        *text = *next++;
        return true;
      },
      MakeWordSplitter(request.at("pre_tokenizer"), request.at("normalizer")));
}

Json Answer(const Json& request) {
  const auto start = std::chrono::steady_clock::now();
  const TrainedBpe bpe = TrainBpe(Words(request), {.vocab_size = request.at("vocab_size"),
                                                   .min_frequency = request.at("min_frequency"),
                                                   .allow_fewer = true,
                                                   .special_tokens = request.at("special_tokens")});
  const std::string json = ToHuggingFaceJson(bpe, request.value("pre_tokenizer", Json()),
                                             request.value("normalizer", Json()));
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  return {{"tokenizer", json}, {"seconds", seconds.count()}};
}

}  // namespace
}  // namespace lockstep::data

int main(int argc, char** argv) {
  using namespace lockstep;
  try {
    LS_CHECK(argc == 2, "usage: train_bpe REQUESTS.jsonl");
    std::istringstream lines(ReadFile(argv[1]));
    for (std::string line; std::getline(lines, line);) {
      std::cout << (data::Answer(ParseJson(line, argv[1]))).dump() << "\n";
    }
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "train_bpe: error: %s\n", e.what());
    return 1;
  }
}
