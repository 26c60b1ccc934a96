#include "data/conversations/preference_dataset.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/io/sha256.h"
#include "data/conversations/conversation_encoder.h"
#include "data/conversations/encode_rows.h"
#include "data/conversations/model_template.h"
#include "data/dataset_parts.h"
#include "data/shared_datasets.h"

namespace lockstep::data {
namespace {

// Whether a list of messages begins with what the assistant says.
bool BeginsWithAnswer(const OrderedJson& messages, const std::string& field,
                      const std::string& place) {
  Conversation read{.place = place};
  AppendMessages(messages, "", field, &read);
  return !read.messages.empty() && read.messages[0]["role"] == "assistant";
}

// The number of messages with which both begin, without the last message of either.
size_t CommonMessages(const Conversation& a, const Conversation& b) {
  const size_t most = std::min(a.messages.size(), b.messages.size()) - 1;
  size_t common = 0;
  while (common < most && a.messages[common] == b.messages[common]) ++common;
  return common;
}

}  // namespace

bool LooksLikePreferencePair(const OrderedJson& row) {
  return row.contains("chosen") && row.contains("rejected");
}

PreferencePair ToPreferencePair(const OrderedJson& row, const std::string& place) {
  if (!LooksLikePreferencePair(row)) {
    throw InputError(
        StrCat(place,
               ": this row is not a pair of answers: expected {\"prompt\": \"...\", \"chosen\": "
               "\"...\", \"rejected\": \"...\"}, texts or lists of messages; found ",
               FieldsOf(row)));
  }
  const bool lists = row["chosen"].is_array() && row["rejected"].is_array();
  const bool has_prompt = row.contains("prompt") && !row["prompt"].is_null();
  if (!has_prompt && !lists) {
    throw InputError(StrCat(place,
                            ": without a \"prompt\", \"chosen\" and \"rejected\" must be "
                            "lists of messages that begin with it"));
  }
  // The list says more than the text does.
  const bool repeated = has_prompt && lists && row["prompt"].is_string() &&
                        !BeginsWithAnswer(row["chosen"], "chosen", place) &&
                        !BeginsWithAnswer(row["rejected"], "rejected", place);
  OrderedJson common = OrderedJson::object();  // of both conversations
  for (const char* key : {"system", "prompt", "tools", "chat_template_kwargs"}) {
    const bool is_prompt = key == std::string_view("prompt");
    if (row.contains(key) && !(is_prompt && (!has_prompt || repeated))) common[key] = row[key];
  }
  const auto read = [&](const char* answer) {
    common[answer] = row[answer];
    Conversation conversation = ToCompletion(common, answer, place);
    common.erase(answer);
    return conversation;
  };
  PreferencePair pair{.chosen = read("chosen"), .rejected = read("rejected")};
  if (has_prompt && !repeated) return pair;
  const size_t prompt = CommonMessages(pair.chosen, pair.rejected);
  for (Conversation* conversation : {&pair.chosen, &pair.rejected}) {
    std::fill_n(conversation->learnt.begin(), prompt, false);
    if (std::ranges::find(conversation->learnt, true) == conversation->learnt.end()) {
      throw InputError(StrCat(place, ": ", conversation == &pair.chosen ? "chosen" : "rejected",
                              " ends without an answer of the assistant after the ", prompt,
                              " messages that both begin with; leave the row out"));
    }
  }
  return pair;
}

namespace {

// Rows of different lengths, one after the other.
struct Rows {
  std::vector<int32_t> ids;
  std::vector<uint8_t> learnt;
  std::vector<uint64_t> begins = {0};  // and the end of the last

  void Add(const EncodedConversation& row) {
    ids.insert(ids.end(), row.ids.begin(), row.ids.end());
    learnt.insert(learnt.end(), row.learnt.begin(), row.learnt.end());
    begins.push_back(ids.size());
  }
};

// The rows of some pairs, documents 2 p and 2 p + 1 of pair p, as a stream in which each takes
// `width` tokens; what fills it up is 0. One token more, because targets are those of the next
// position.
class FilledRows : public TokenSource {
 public:
  FilledRows(std::shared_ptr<const TokenSource> rows, std::vector<int64_t> pairs, int64_t width)
      : rows_(std::move(rows)), pairs_(std::move(pairs)), width_(width) {
    std::vector<int32_t> starts(static_cast<size_t>(rows_->size()));
    rows_->ReadDocumentStarts(0, starts);
    starts.push_back(1);  // where the last row ends
    for (int64_t i = 0; i < std::ssize(starts); ++i) {
      if (starts[i] != 0) begins_.push_back(i);
    }
  }
  int64_t size() const override { return 2 * std::ssize(pairs_) * width_ + 1; }
  bool has_loss_mask() const override { return true; }

 private:
  void DoRead(int64_t offset, std::span<int32_t> out) const override {
    Copy(&TokenSource::Read, offset, out);
  }
  void DoReadLossMask(int64_t offset, std::span<int32_t> out) const override {
    Copy(&TokenSource::ReadLossMask, offset, out);
  }
  void Copy(void (TokenSource::*read)(int64_t, std::span<int32_t>) const, int64_t offset,
            std::span<int32_t> out) const {
    while (!out.empty()) {
      const int64_t at = offset / width_, col = offset % width_;
      const int64_t row = at < 2 * std::ssize(pairs_) ? 2 * pairs_[at / 2] + at % 2 : -1;
      const auto part = out.first(std::min<size_t>(out.size(), width_ - col));
      const int64_t length = row >= 0 ? begins_[row + 1] - begins_[row] : 0;
      const int64_t n = std::clamp<int64_t>(length - col, 0, std::ssize(part));
      if (n > 0) std::invoke(read, *rows_, begins_[row] + col, part.first(n));
      std::ranges::fill(part.subspan(n), 0);
      offset += std::ssize(part);
      out = out.subspan(part.size());
    }
  }

  const std::shared_ptr<const TokenSource> rows_;
  std::vector<int64_t> begins_;
  const std::vector<int64_t> pairs_;
  const int64_t width_;
};

// Keeps the two rows of a pair as the rule for long ones says; counts them.
void Append(EncodedRow pair, const std::string& place, int64_t width, const std::string& if_long,
            Rows* all, PreferenceCounts* counts) {
  if (pair.empty()) {
    ++counts->empty;
    return;
  }
  int64_t longest = 0;
  for (const EncodedConversation& row : pair) longest = std::max(longest, std::ssize(row.ids));
  counts->most_tokens = std::max(counts->most_tokens, longest);
  if (longest > width) {
    if (if_long == "error") {
      throw InputError(StrCat(place, ": an answer with its prompt has ", longest,
                              " tokens, and a row has ", width, ": use a larger ",
                              "--model.block_size, or --data.if_long=drop or cut"));
    }
    ++counts->too_long;
    if (if_long == "drop") return;
  }
  int64_t learnt = 0, tokens = 0;
  for (EncodedConversation& row : pair) {
    const auto kept = std::min(row.ids.size(), static_cast<size_t>(width));
    row.ids.resize(kept);
    row.learnt.resize(kept);
    // The first token of a row is nobody's target.
    if (kept > 0) row.learnt[0] = 0;
    const auto of_row = static_cast<int64_t>(std::ranges::count(row.learnt, 1));
    if (of_row == 0) {
      ++counts->not_learnt;
      return;
    }
    learnt += of_row;
    tokens += static_cast<int64_t>(kept);
  }
  if (pair[0].ids == pair[1].ids) {
    ++counts->equal;
    return;
  }
  ++counts->pairs;
  counts->learnt += learnt;
  counts->tokens += tokens;
  for (const EncodedConversation& row : pair) all->Add(row);
}

std::string Fingerprint(const Rows& rows, const RowSplit& split) {
  Sha256 hash;
  hash.Update(std::as_bytes(std::span(rows.ids)));
  hash.Update(std::as_bytes(std::span(rows.learnt)));
  hash.Update(std::as_bytes(std::span(rows.begins)));
  hash.Update(std::as_bytes(std::span(split.val)));
  return hash.HexDigest();
}

std::string LeftOut(const PreferenceCounts& c, int64_t width, bool cut) {
  std::string text;
  if (c.too_long > 0) {
    text += StrCat("; ", c.too_long, " of more than ", width, " tokens ", cut ? "cut" : "left out",
                   " (the longest has ", c.most_tokens, ": --model.block_size, --data.if_long)");
  }
  if (c.not_learnt > 0) {
    text += StrCat("; ", c.not_learnt, " left out because nothing of an answer is learnt");
  }
  if (c.equal > 0) {
    text += StrCat("; ", c.equal, " left out because both answers are the same");
  }
  if (c.empty > 0) text += StrCat("; ", c.empty, " left out because of an empty message");
  return text;
}

// Its training stream has the rows of all pairs one after the other, each a document.
PreferenceDataset EncodePreferences(const DatasetOptions& options,
                                    const ConversationOptions& conversation_options) {
  const std::string& if_long = conversation_options.if_long;
  const int64_t width = options.block_size;
  PreferenceDataset result;
  PreferenceCounts& counts = result.counts;
  const auto shared_counts = std::as_writable_bytes(std::span(&counts, 1));
  if (TakeShared(options, shared_counts, &result.dataset)) return result;
  const ModelTemplate model = LoadModelTemplate(
      conversation_options.chat_template, conversation_options.folders, TokenizerForChat(options));
  const ConversationEncoder encoder(model.chat_template, model.tokenizer,
                                    conversation_options.special_tokens_of_users);
  Rows rows;
  const int64_t bad_utf8 = EncodeRows(
      options.path,
      [&](const OrderedJson& row, const std::string& place) {
        const PreferencePair pair = ToPreferencePair(row, place);
        if (pair.chosen.empty || pair.rejected.empty) return EncodedRow{};
        return EncodedRow{encoder.Encode(pair.chosen), encoder.Encode(pair.rejected)};
      },
      [&](EncodedRow pair, const std::string& place) {
        Append(std::move(pair), place, width, if_long, &rows, &counts);
      });
  const std::string left_out = LeftOut(counts, width, if_long == "cut");
  const RowSplit split = SplitRows(counts.pairs, options.val_fraction);
  if (split.train.empty() || (options.val_fraction > 0 && split.val.empty())) {
    throw InputError(
        StrCat(options.path, ": ", counts.pairs, " pairs of answers are there", left_out,
               ": too few for training and validation: use more data, or another ",
               "--data.val_fraction (0 turns validation off; now ", options.val_fraction, ")"));
  }
  if (!rows.ids.empty()) CheckVocabulary(*std::ranges::max_element(rows.ids), options);
  Dataset& dataset = result.dataset;
  dataset.tokenizer = model.tokenizer;
  dataset.vocab_size = model.tokenizer->vocab_size();
  dataset.name = options.path;
  dataset.fingerprint = Fingerprint(rows, split);
  dataset.note =
      StrCat(options.path, ": ", split.train.size(), " pairs of answers to train on and ",
             split.val.size(), " held out; their rows have ", counts.tokens / (2 * counts.pairs),
             " of ", width, " tokens on average, of which ", counts.learnt * 100 / counts.tokens,
             "% are learnt", left_out);
  if (bad_utf8 > 0) {
    dataset.note += StrCat("; ", bad_utf8, " malformed parts of UTF-8 became U+FFFD");
  }
  rows.begins.pop_back();
  dataset.train =
      std::make_shared<PackedTokens>(rows.ids, std::move(rows.begins), std::move(rows.learnt));
  Share(options, shared_counts, &dataset);
  return result;
}

}  // namespace

PreferenceDataset OpenPreferences(const DatasetOptions& options,
                                  const ConversationOptions& conversation_options) {
  const int64_t width = options.block_size;
  LS_CHECK(width >= 2, "block_size=", width, ": expected at least 2");
  if (options.path.empty()) {
    throw InputError(
        "preference tuning needs pairs of answers: name JSONL files of rows with "
        "prompt, chosen and rejected with --data.path=");
  }
  PreferenceDataset result = EncodePreferences(options, conversation_options);
  const RowSplit split = SplitRows(result.counts.pairs, options.val_fraction);
  const std::shared_ptr<const TokenSource> rows = result.dataset.train;
  for (const auto& [stream, pairs] :
       {std::pair(&result.dataset.train, &split.train), {&result.dataset.val, &split.val}}) {
    if (!pairs->empty()) *stream = std::make_shared<FilledRows>(rows, *pairs, width);
  }
  return result;
}

std::string ShowPair(const TokenSource& source, const Tokenizer& tokenizer, int64_t pair,
                     int64_t block_size, const std::string& begin, const std::string& end) {
  std::string text;
  std::vector<int32_t> ids(static_cast<size_t>(block_size)), learnt(ids.size());
  for (const int64_t row : {2 * pair, 2 * pair + 1}) {
    source.Read(row * block_size, ids);
    source.ReadLossMask(row * block_size, learnt);
    auto last = std::ssize(ids);
    while (last > 0 && learnt[last - 1] == 0) --last;
    text += row % 2 == 0 ? "chosen:\n" : "\nrejected:\n";
    for (int64_t i = 0; i < last; ++i) {
      if (learnt[i] != 0 && learnt[i - 1] == 0) text += begin;
      text += tokenizer.TokenText(ids[i]);
      if (learnt[i] != 0 && (i + 1 == last || learnt[i + 1] == 0)) text += end;
    }
  }
  return text;
}

}  // namespace lockstep::data
