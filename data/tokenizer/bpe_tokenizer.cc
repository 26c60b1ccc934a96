#include "data/tokenizer/bpe_tokenizer.h"

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/json.h"
#include "data/tokenizer/decoder.h"
#include "data/tokenizer/tokenizer_json.h"
#include "data/utf8.h"

namespace lockstep::data {
namespace {

// Longer ones would make the search slow.
constexpr size_t kMaxAddedBytes = 1024;

// A token of tokenizer_config.json: a string, or an object with "content".
std::optional<std::string> TokenOf(const JsonObject& config, const char* key) {
  const Json* value = config.Find(key);
  if (value == nullptr) return std::nullopt;
  return value->is_object() ? config.Object(key).String("content") : config.String(key);
}

}  // namespace

struct BpeTokenizer::Target {
  BpeModel::Scratch* scratch;
  std::vector<int32_t>* ids;
};

BpeTokenizer::BpeTokenizer(const Json& json, std::string text, std::string config,
                           const std::string& origin)
    : text_(std::move(text)), config_(std::move(config)) {
  const JsonObject root(json, origin + ":");
  root.AllowOnly({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                  "post_processor", "decoder", "model"});
  if (root.Find("normalizer")) normalizer_ = Normalizer(root.Object("normalizer"));
  if (root.Find("pre_tokenizer")) pre_tokenizer_ = PreTokenizer(root.Object("pre_tokenizer"));
  const bool byte_level = pre_tokenizer_.byte_level();
  model_ = std::make_unique<BpeModel>(root.Object("model"), byte_level);
  decoder_ = std::make_unique<Decoder>(
      byte_level && !root.Find("decoder") ? Decoder::ByteLevel() : Decoder(root.Object("decoder")));
  if (decoder_->byte_level() != byte_level) {
    throw InputError(StrCat(origin,
                            ": the decoder and the pre_tokenizer do not belong together: "
                            "only one of them is ByteLevel"));
  }
  if (root.Find("added_tokens")) ReadAddedTokens(root);
  SetTexts();
  if (root.Find("post_processor")) ReadPostProcessor(root.Object("post_processor"));
  if (special_ids_.before.size() == 1) special_ids_.bos = special_ids_.before[0];
  if (special_ids_.after.size() == 1) special_ids_.eos = special_ids_.after[0];
  special_ids_.unk = model_->unknown();
  if (!config_.empty()) ReadConfig(ParentPath(origin));
  // The token between documents, by the names that models use; a chat model's eos is another one.
  const auto find = [&](std::initializer_list<const char*> names) {
    for (const char* name : names) {
      if (!end_of_text_) end_of_text_ = AddedId(name);
    }
  };
  find({"<|endoftext|>", "<|end_of_text|>"});
  if (!end_of_text_) end_of_text_ = special_ids_.eos;
  find({"</s>", "<eos>"});
  if (!special_ids_.eos) special_ids_.eos = end_of_text_;
}

BpeTokenizer::~BpeTokenizer() = default;

void BpeTokenizer::ReadAddedTokens(const JsonObject& root) {
  const std::vector<JsonObject> list = root.Objects("added_tokens");
  const int64_t limit = 2 * static_cast<int64_t>(model_->tokens().size() + list.size()) + 1024;
  std::map<int32_t, std::string> by_id;
  for (const JsonObject& json : list) {
    json.AllowOnly({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    AddedToken token;
    token.content = json.String("content");
    if (token.content.empty() || token.content.size() > kMaxAddedBytes) {
      json.Refuse("content", StrCat("it must have 1 to ", kMaxAddedBytes, " bytes"));
    }
    token.id = static_cast<int32_t>(json.Integer("id", limit - 1));
    token.single_word = json.Bool("single_word", false);
    token.lstrip = json.Bool("lstrip", false);
    token.rstrip = json.Bool("rstrip", false);
    token.special = json.Bool("special", false);
    token.normalized = json.Bool("normalized", !token.special);
    const auto known = model_->Id(token.content);
    if (known) token.id = *known;
    const auto& tokens = model_->tokens();
    const auto id = static_cast<size_t>(token.id);
    const auto [it, is_new] = by_id.emplace(token.id, token.content);
    if ((!known && id < tokens.size() && !tokens[id].empty()) || it->second != token.content) {
      json.Refuse("id", "another token has it, too");
    }
    added_ids_[token.content] = token.id;
    added_.push_back(std::move(token));
  }
}

void BpeTokenizer::SetTexts() {
  const std::vector<std::string>& tokens = model_->tokens();
  for (const std::string& token : tokens) texts_.push_back(decoder_->Text(token));
  std::string buffer;
  for (const AddedToken& token : added_) {
    const std::string pattern(token.normalized ? normalizer_.Apply(token.content, &buffer)
                                               : std::string_view(token.content));
    (token.normalized ? normalized_finder_ : raw_finder_).Add(token, pattern);
    const auto id = static_cast<size_t>(token.id);
    if (id >= texts_.size()) texts_.resize(id + 1);
    if (!decoder_->byte_level()) {
      texts_[id] = decoder_->Text(pattern);
    } else if (texts_[id].empty()) {  // else it is also a word of the byte alphabet
      texts_[id] = pattern;
    }
  }
}

void BpeTokenizer::ReadPostProcessor(const JsonObject& json) {
  const std::string& type = json.String("type");
  if (type == "Sequence") {
    json.AllowOnly({"type", "processors"});
    for (const JsonObject& item : json.Objects("processors")) ReadPostProcessor(item);
  } else if (type == "TemplateProcessing") {
    ReadTemplate(json);
  } else if (type != "ByteLevel") {  // which is only about offsets
    json.Refuse("type", "known post-processors are TemplateProcessing, ByteLevel and Sequence");
  }
}

void BpeTokenizer::ReadTemplate(const JsonObject& json) {
  json.AllowOnly({"type", "single", "pair", "special_tokens"});
  bool text_seen = false;
  for (const JsonObject& item : json.Objects("single")) {
    item.AllowOnly({"SpecialToken", "Sequence"});
    if (item.Find("Sequence") != nullptr) {
      if (text_seen) item.Refuse("Sequence", "a second text in \"single\"");
      text_seen = true;
      continue;
    }
    const std::string& name = item.Object("SpecialToken").String("id");
    const JsonObject token = json.Object("special_tokens").Object(name.c_str());
    const Json* ids = token.Find("ids");
    if (ids == nullptr) token.Refuse("ids", "expected a list of ids");
    for (const int64_t id : IntegersOf(*ids)) {
      if (id < 0 || id >= vocab_size()) token.Refuse("ids", StrCat("there is no token ", id));
      (text_seen ? special_ids_.after : special_ids_.before).push_back(static_cast<int32_t>(id));
    }
  }
  if (!text_seen) json.Refuse("single", "there is no Sequence in it");
}

void BpeTokenizer::ReadConfig(const std::string& folder) {
  const std::string file = JoinPath(folder, "tokenizer_config.json");
  const Json parsed = ParseJson(config_, file);
  const JsonObject config(parsed, file + ":");
  const auto read = [&](const char* key, std::optional<int32_t>* id) {
    const auto token = TokenOf(config, key);
    if (!token) return;
    const auto found = AddedId(*token);
    if (found || model_->Id(*token)) *id = found ? found : model_->Id(*token);
  };
  read("bos_token", &special_ids_.bos);
  read("eos_token", &special_ids_.eos);
  read("pad_token", &special_ids_.pad);
  read("unk_token", &special_ids_.unk);
}

std::optional<int32_t> BpeTokenizer::AddedId(std::string_view text) const {
  const auto it = added_ids_.find(text);
  return it == added_ids_.end() ? std::nullopt : std::optional(it->second);
}

std::vector<int32_t> BpeTokenizer::Encode(std::string_view text) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 4 + 8);
  EncodeText(text, Place::kStart, /*with_specials=*/false, &ids);
  return ids;
}

void BpeTokenizer::EncodeTo(std::string_view text, std::vector<int32_t>* ids) const {
  EncodeText(text, Place::kStart, /*with_specials=*/false, ids);
}

void BpeTokenizer::EncodeRestTo(std::string_view text, std::vector<int32_t>* ids) const {
  EncodeText(text, Place::kBehindText, /*with_specials=*/false, ids);
}

std::vector<int32_t> BpeTokenizer::EncodeWithSpecials(std::string_view text) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 4 + 8);
  EncodeText(text, Place::kStart, /*with_specials=*/true, &ids);
  return ids;
}

void BpeTokenizer::EncodeText(std::string_view text, Place place, bool with_specials,
                              std::vector<int32_t>* ids) const {
  const BpeModel::Lease lease(*model_);
  Target target{.scratch = lease.get(), .ids = ids};
  for (; !text.empty(); place = Place::kBehindToken) {
    const size_t valid = ValidUtf8Prefix(text);
    EncodeValid(text.substr(0, valid), place, with_specials, &target);
    text.remove_prefix(valid);
    size_t malformed = 0;
    while (malformed < text.size() && DecodeUtf8(text, malformed).length == 0) ++malformed;
    const std::string_view bytes = text.substr(0, malformed);
    if (model_->byte_level()) {
      model_->Encode(bytes, target.scratch, ids);
    } else {
      model_->EncodeMalformed(bytes, ids);
    }
    text.remove_prefix(malformed);
  }
}

void BpeTokenizer::EncodeValid(std::string_view text, Place place, bool with_specials,
                               Target* target) const {
  std::string buffer;
  const PreTokenizer::Sink encode_word = [&](std::string_view word) {
    model_->Encode(word, target->scratch, target->ids);
  };
  raw_finder_.Cut(text, with_specials, [&](std::string_view raw, std::optional<int32_t> id) {
    if (id) return target->ids->push_back(*id);
    const bool first_raw = raw.data() == text.data();
    const std::string_view normalized =
        normalizer_.Apply(raw, &buffer, !first_raw || place != Place::kBehindText);
    normalized_finder_.Cut(
        normalized, with_specials, [&](std::string_view piece, std::optional<int32_t> piece_id) {
          if (piece_id) return target->ids->push_back(*piece_id);
          const bool first = first_raw && piece.data() == normalized.data();
          pre_tokenizer_.Cut(piece, first ? place : Place::kBehindToken, encode_word);
        });
  });
}

std::string BpeTokenizer::TokenText(int32_t id) const {
  RequireTokenId(id, *this);
  return texts_[static_cast<size_t>(id)];
}

std::string BpeTokenizer::Decode(std::span<const int32_t> ids) const {
  std::string text;
  text.reserve(4 * ids.size());
  for (const int32_t id : ids) {
    RequireTokenId(id, *this);
    text += texts_[static_cast<size_t>(id)];
  }
  if (!ids.empty()) decoder_->FinishText(texts_[static_cast<size_t>(ids[0])].size(), &text);
  return text;
}

}  // namespace lockstep::data
