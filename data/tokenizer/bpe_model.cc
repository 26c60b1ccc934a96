#include "data/tokenizer/bpe_model.h"

#include <algorithm>
#include <cstdio>

#include "core/error.h"
#include "core/io/json.h"
#include "data/tokenizer/byte_alphabet.h"
#include "data/tokenizer/character_class.h"
#include "data/utf8.h"

namespace lockstep::data {
namespace {

uint64_t Pair(uint32_t left, uint32_t right) { return uint64_t{left} << 32 | right; }

// What a Scratch may keep between texts.
constexpr size_t kMaxIdleSymbols = size_t{1} << 20;

uint32_t LastCharacter(std::string_view text) {
  size_t begin = text.size() - 1;
  while (begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xc0) == 0x80) --begin;
  return DecodeUtf8(text, begin).code_point;
}

// The two tokens of a merge, "left right" or ["left", "right"].
// `where` is called only for the message of an error.
template <typename Where>
std::pair<std::string_view, std::string_view> PartsOf(const Json& merge, const Where& where) {
  std::string_view left, right;
  if (merge.is_string()) {
    const std::string_view text = merge.string();
    const size_t space = text.find(' ');
    if (space != std::string_view::npos && text.find(' ', space + 1) == std::string_view::npos) {
      left = text.substr(0, space);
      right = text.substr(space + 1);
    }
  } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
             merge[1].is_string()) {
    left = merge[0].string();
    right = merge[1].string();
  }
  if (left.empty() || right.empty()) {
    throw InputError(StrCat(where(), ": ", Quoted(merge.dump()),
                            " is not a merge: expected \"left right\" or [\"left\", \"right\"]"));
  }
  return {left, right};
}

}  // namespace

BpeModel::BpeModel(const JsonObject& json, bool byte_level) : byte_level_(byte_level) {
  if (json.Find("type") != nullptr && json.String("type") != "BPE") {
    json.Refuse("type", "only BPE is");
  }
  json.AllowOnly({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                  "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
  if (const Json* dropout = json.Find("dropout"); dropout != nullptr && *dropout != 0) {
    json.Refuse("dropout", "leave it out");
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (json.Find(key) != nullptr && json.String(key) != "") json.Refuse(key, "leave it out");
  }
  ignore_merges_ = json.Bool("ignore_merges", false);
  fuse_unknown_ = json.Bool("fuse_unk", false);
  ReadVocabulary(json);
  SetSymbols(json);
  const std::vector<BpeMerge> merges = ReadMerges(json);
  merger_.emplace(merges);
  if (!byte_level_) FindCuts(merges);
}

void BpeModel::ReadVocabulary(const JsonObject& json) {
  const JsonObject object = json.Object("vocab");
  const Json& vocabulary = *json.Find("vocab");
  // Ids may have gaps, but not so many that a small file would need much memory.
  const int64_t limit = 2 * static_cast<int64_t>(vocabulary.size()) + 1024;
  std::vector<std::pair<int32_t, const std::string*>> entries;
  for (const auto& [token, value] : vocabulary.items()) {
    try {
      entries.emplace_back(static_cast<int32_t>(IntegerOf(value, 0, limit - 1)), &token);
    } catch (const InputError& e) {
      throw InputError(StrCat(object.where(), ": the id of token ", Quoted(token), ": ", e.what()));
    }
  }
  std::ranges::sort(entries);
  if (!entries.empty()) tokens_.resize(static_cast<size_t>(entries.back().first) + 1);
  for (size_t i = 0; i < entries.size(); ++i) {
    const auto& [id, token] = entries[i];
    if (i > 0 && entries[i - 1].first == id) {
      throw InputError(StrCat(object.where(), ": the tokens ", Quoted(*entries[i - 1].second),
                              " and ", Quoted(*token), " have the same id ", id));
    }
    tokens_[id] = *token;
    longest_ = std::max(longest_, token->size());
  }
  ids_.reserve(entries.size());
  for (const auto& [id, token] : entries) ids_.emplace(tokens_[id], id);
}

std::optional<int32_t> BpeModel::Id(std::string_view token) const {
  const auto it = ids_.find(token);
  return it == ids_.end() ? std::nullopt : std::optional(it->second);
}

void BpeModel::SetSymbols(const JsonObject& json) {
  byte_ids_.fill(-1);
  if (byte_level_) {
    for (int byte = 0; byte < 256; ++byte) {
      const auto id = Id(BytesToPrintable(std::string(1, static_cast<char>(byte))));
      if (!id) {
        throw InputError(StrCat(json.where(), ".vocab: no token is the single byte ", byte,
                                "; a byte-level vocabulary has all 256"));
      }
      byte_ids_[byte] = *id;
    }
    return;
  }
  if (json.Find("unk_token") != nullptr) {
    unknown_ = Id(json.String("unk_token"));
    if (!unknown_) json.Refuse("unk_token", "it is not in the vocabulary");
  }
  if (json.Bool("byte_fallback", false)) {
    for (int byte = 0; byte < 256; ++byte) {
      char token[8];
      std::snprintf(token, sizeof(token), "<0x%02X>", static_cast<unsigned>(byte));
      byte_ids_[byte] = Id(token).value_or(-1);
    }
  }
  ascii_symbols_.fill(-1);
  for (const auto& [token, id] : ids_) {
    if (token.empty()) continue;
    const Utf8Character c = DecodeUtf8(token, 0);
    if (static_cast<size_t>(c.length) != token.size()) continue;
    if (c.code_point < 128) {
      ascii_symbols_[c.code_point] = id;
    } else {
      symbols_.emplace(c.code_point, id);
    }
  }
}

std::vector<BpeMerge> BpeModel::ReadMerges(const JsonObject& json) const {
  const Json* list = json.Find("merges");
  if (list == nullptr || !list->is_array()) {
    throw InputError(StrCat(json.where(), ".merges: expected a list"));
  }
  std::vector<BpeMerge> merges;
  std::unordered_set<uint64_t> pairs;
  merges.reserve(list->size());
  pairs.reserve(list->size());
  std::string joined;
  for (const Json& item : *list) {
    const auto where = [&] { return StrCat(json.where(), ".merges[", merges.size(), "]"); };
    const auto [left, right] = PartsOf(item, where);
    joined.assign(left).append(right);
    const auto id = [&](std::string_view token) {
      const auto found = Id(token);
      if (found) return *found;
      throw InputError(StrCat(where(), ": token ", Quoted(token), " is not in the vocabulary"));
    };
    const BpeMerge merge = {id(left), id(right), id(joined)};
    if (!pairs.insert(Pair(merge.left, merge.right)).second) {
      throw InputError(
          StrCat(where(), ": the pair ", Quoted(left), " ", Quoted(right), " already has a merge"));
    }
    merges.push_back(merge);
  }
  return merges;
}

void BpeModel::FindCuts(const std::vector<BpeMerge>& merges) {
  ascii_joined_.resize(128 * 128);
  const std::unordered_set<int32_t> bytes(byte_ids_.begin(), byte_ids_.end());
  for (const BpeMerge& merge : merges) {
    // Tokens for bytes and for the unknown do not have the text that they stand for.
    for (const int32_t part : {merge.left, merge.right}) {
      if (part == unknown_ || bytes.contains(part)) return;
    }
    const uint32_t left = LastCharacter(tokens_[merge.left]);
    const uint32_t right = DecodeUtf8(tokens_[merge.right], 0).code_point;
    if (left < 128 && right < 128) {
      ascii_joined_[left * 128 + right] = true;
    } else {
      joined_.insert(Pair(left, right));
    }
  }
  can_cut_ = true;
}

int32_t BpeModel::Symbol(uint32_t code_point) const {
  if (code_point < 128) return ascii_symbols_[code_point];
  const auto it = symbols_.find(code_point);
  return it == symbols_.end() ? -1 : it->second;
}

bool BpeModel::MayCut(uint32_t left, uint32_t right) const {
  if (left < 128 && right < 128) {
    return !ascii_joined_[left * 128 + right] && ascii_symbols_[left] >= 0 &&
           ascii_symbols_[right] >= 0;
  }
  return !joined_.contains(Pair(left, right)) && Symbol(left) >= 0 && Symbol(right) >= 0;
}

std::optional<int32_t> BpeModel::WholeWord(std::string_view word) const {
  if (word.size() > longest_) return std::nullopt;
  return byte_level_ ? Id(BytesToPrintable(word)) : Id(word);
}

void BpeModel::Encode(std::string_view word, Scratch* scratch, std::vector<int32_t>* ids) const {
  if (word.empty()) return;
  if (!can_cut_) return EncodePart(word, scratch, ids);
  if (ignore_merges_) {
    if (const auto id = WholeWord(word)) return ids->push_back(*id);
  }
  const char* const data = word.data();
  int length;
  uint32_t left = DecodeValidUtf8(data, &length);
  size_t begin = 0;
  for (size_t i = static_cast<size_t>(length); i < word.size();) {
    const uint32_t right = DecodeValidUtf8(data + i, &length);
    if (MayCut(left, right)) {
      EncodePart(word.substr(begin, i - begin), scratch, ids);
      begin = i;
    }
    left = right;
    i += static_cast<size_t>(length);
  }
  EncodePart(word.substr(begin), scratch, ids);
}

void BpeModel::EncodePart(std::string_view part, Scratch* scratch,
                          std::vector<int32_t>* ids) const {
  std::optional<WordCache::Key> key;
  if (part.size() <= WordCache::kMaxWordBytes) key.emplace(part);
  if (key && scratch->cache.Find(*key, ids)) return;
  std::vector<int32_t>& symbols = scratch->symbols;
  symbols.clear();
  const auto whole = ignore_merges_ && !can_cut_ ? WholeWord(part) : std::nullopt;
  if (whole) {
    symbols.push_back(*whole);
  } else {
    ToSymbols(part, &symbols);
    merger_->Apply(&symbols);
  }
  ids->insert(ids->end(), symbols.begin(), symbols.end());
  if (key) scratch->cache.Insert(*key, symbols);
}

void BpeModel::ToSymbols(std::string_view part, std::vector<int32_t>* symbols) const {
  if (byte_level_) {
    for (const char c : part) symbols->push_back(byte_ids_[static_cast<uint8_t>(c)]);
    return;
  }
  // An unknown token waits until it is clear whether the next character is unknown, too.
  bool waiting = false;
  int length;
  for (size_t i = 0; i < part.size(); i += static_cast<size_t>(length)) {
    const int32_t id = Symbol(DecodeValidUtf8(part.data() + i, &length));
    if (id >= 0) {
      if (waiting) symbols->push_back(*unknown_);
      waiting = false;
      symbols->push_back(id);
      continue;
    }
    const std::string_view bytes = part.substr(i, static_cast<size_t>(length));
    const auto byte_id = [&](char c) { return byte_ids_[static_cast<uint8_t>(c)]; };
    if (std::ranges::all_of(bytes, [&](char c) { return byte_id(c) >= 0; })) {
      for (const char c : bytes) symbols->push_back(byte_id(c));
    } else if (unknown_) {
      if (waiting && !fuse_unknown_) symbols->push_back(*unknown_);
      waiting = true;
    }
  }
  if (waiting) symbols->push_back(*unknown_);
}

void BpeModel::EncodeMalformed(std::string_view bytes, std::vector<int32_t>* ids) const {
  bool fuses = false;
  for (const char c : bytes) {
    const int32_t id = byte_ids_[static_cast<uint8_t>(c)];
    if (id >= 0) {
      ids->push_back(id);
    } else if (!unknown_) {
      throw InputError(StrCat("the text is not UTF-8 (byte ",
                              static_cast<int>(static_cast<uint8_t>(c)),
                              "), and the vocabulary has no tokens for bytes"));
    } else if (!fuses || !fuse_unknown_) {
      ids->push_back(*unknown_);
    }
    fuses = id < 0;
  }
}

BpeModel::Lease::Lease(const BpeModel& model) : model_(model) {
  {
    const std::lock_guard lock(model.mutex_);
    if (!model.idle_.empty()) {
      scratch_ = std::move(model.idle_.back());
      model.idle_.pop_back();
    }
  }
  if (scratch_ == nullptr) scratch_ = std::make_unique<Scratch>();
}

BpeModel::Lease::~Lease() {
  if (scratch_->symbols.capacity() > kMaxIdleSymbols) scratch_->symbols = {};
  const std::lock_guard lock(model_.mutex_);
  model_.idle_.push_back(std::move(scratch_));
}

}  // namespace lockstep::data
