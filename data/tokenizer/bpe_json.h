// The parts of the tokenizer.json that Hugging Face's library writes, most of byte-level BPE. Json
// is Json or OrderedJson.
#pragma once

#include <string>
#include <utility>

namespace lockstep::data {

// A pre-tokenizer or a decoder.
template <class Json>
Json ByteLevelJson(bool add_prefix_space) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", add_prefix_space},
          {"trim_offsets", true},
          {"use_regex", true}};
}

// An entry of "added_tokens".
template <class Json>
Json SpecialTokenJson(Json id, const std::string& content) {
  return {{"id", std::move(id)}, {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false},     {"normalized", false}, {"special", true}};
}

// The whole file, for tokenizers that put no token around a text.
template <class Json>
Json TokenizerFileJson(Json model, Json added_tokens, Json normalizer, Json pre_tokenizer,
                       Json decoder) {
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", std::move(added_tokens)},
          {"normalizer", std::move(normalizer)},
          {"pre_tokenizer", std::move(pre_tokenizer)},
          {"post_processor", nullptr},
          {"decoder", std::move(decoder)},
          {"model", std::move(model)}};
}

// The model of BPE without an unknown token.
template <class Json>
Json BpeModelJson(Json vocab, Json merges) {
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", nullptr},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", false},
          {"byte_fallback", false},
          {"ignore_merges", false},
          {"vocab", std::move(vocab)},
          {"merges", std::move(merges)}};
}

// The whole file for byte-level BPE.
template <class Json>
Json ByteLevelBpeJson(Json vocab, Json merges, Json added_tokens, Json normalizer,
                      Json pre_tokenizer, Json decoder) {
  return TokenizerFileJson<Json>(BpeModelJson<Json>(std::move(vocab), std::move(merges)),
                                 std::move(added_tokens), std::move(normalizer),
                                 std::move(pre_tokenizer), std::move(decoder));
}

}  // namespace lockstep::data
