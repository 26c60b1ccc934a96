#include "data/conversations/conversation_dataset.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "core/error.h"
#include "core/io/json.h"
#include "core/io/sha256.h"
#include "data/conversations/conversation.h"
#include "data/conversations/conversation_encoder.h"
#include "data/conversations/encode_rows.h"
#include "data/conversations/model_template.h"
#include "data/conversations/packing.h"
#include "data/dataset_parts.h"
#include "data/shared_datasets.h"
#include "data/text/text_files.h"

namespace lockstep::data {
namespace {

// Many conversations, one after the other.
struct EncodedConversations {
  std::vector<int32_t> ids;
  std::vector<uint8_t> learnt;
  std::vector<int64_t> ends;

  int64_t size() const { return std::ssize(ends); }
  int64_t begin_of(int64_t i) const { return i == 0 ? 0 : ends[static_cast<size_t>(i) - 1]; }
  int64_t length_of(int64_t i) const { return ends[static_cast<size_t>(i)] - begin_of(i); }
};

// Keeps a conversation as the rule for long ones says; counts it.
void Append(EncodedConversation one, const std::string& place, int64_t block_size,
            const std::string& if_long, EncodedConversations* all, ConversationCounts* counts) {
  const int64_t length = std::ssize(one.ids);
  counts->most_tokens = std::max(counts->most_tokens, length);
  if (length > block_size) {
    if (if_long == "error") {
      throw InputError(StrCat(place, ": this conversation has ", length, " tokens, and a row has ",
                              block_size, ": use a larger --model.block_size, or ",
                              "--data.if_long=drop or cut"));
    }
    ++counts->too_long;
    if (if_long == "drop") return;
    one.ids.resize(static_cast<size_t>(block_size));
    one.learnt.resize(static_cast<size_t>(block_size));
  }
  // The first token of a row is nobody's target.
  if (!one.learnt.empty()) one.learnt[0] = 0;
  const auto learnt = static_cast<int64_t>(std::ranges::count(one.learnt, 1));
  if (learnt == 0) {
    ++counts->not_learnt;
    return;
  }
  ++counts->conversations;
  counts->tokens += std::ssize(one.ids);
  counts->learnt += learnt;
  all->ids.insert(all->ids.end(), one.ids.begin(), one.ids.end());
  all->learnt.insert(all->learnt.end(), one.learnt.begin(), one.learnt.end());
  all->ends.push_back(std::ssize(all->ids));
}

// Rows of these conversations.
std::shared_ptr<const TokenSource> Pack(const EncodedConversations& all,
                                        const std::vector<int64_t>& numbers, int64_t block_size,
                                        int64_t* num_rows) {
  std::vector<int64_t> lengths;
  for (const int64_t i : numbers) lengths.push_back(all.length_of(i));
  const auto rows = PackRows(lengths, block_size);
  *num_rows = std::ssize(rows);
  // One token more, because targets are those of the next position.
  const auto size = static_cast<size_t>(*num_rows * block_size + 1);
  std::vector<int32_t> tokens(size);
  std::vector<uint8_t> learnt(size);
  std::vector<uint64_t> starts;
  for (size_t row = 0; row < rows.size(); ++row) {
    int64_t at = static_cast<int64_t>(row) * block_size;
    for (const int64_t item : rows[row]) {
      const int64_t number = numbers[static_cast<size_t>(item)];
      const int64_t from = all.begin_of(number), length = all.length_of(number);
      std::copy_n(all.ids.begin() + from, length, tokens.begin() + at);
      std::copy_n(all.learnt.begin() + from, length, learnt.begin() + at);
      starts.push_back(static_cast<uint64_t>(at));
      at += length;
    }
    const auto next = static_cast<int64_t>(row + 1) * block_size;
    if (at < next) starts.push_back(static_cast<uint64_t>(at));  // what fills the row up
  }
  return std::make_shared<PackedTokens>(tokens, std::move(starts), std::move(learnt));
}

std::string Fingerprint(const EncodedConversations& all, const RowSplit& split) {
  Sha256 hash;
  hash.Update(std::as_bytes(std::span(all.ids)));
  hash.Update(std::as_bytes(std::span(all.learnt)));
  hash.Update(std::as_bytes(std::span(all.ends)));
  hash.Update(std::as_bytes(std::span(split.val)));
  return hash.HexDigest();
}

// In percent, of a whole that is not 0.
std::string Percent(int64_t part, int64_t whole) {
  const int64_t tenths = (part * 1000 + whole / 2) / whole;
  return StrCat(tenths / 10, ".", tenths % 10, "%");
}

std::string NoteOn(const std::string& path, const ConversationCounts& c, int64_t block_size,
                   const std::string& if_long, const std::string& first_empty, int64_t bad_utf8) {
  std::string note =
      StrCat(path, ": ", c.conversations, " conversations in ", c.rows, " rows of ", block_size,
             " tokens, which they fill to ", Percent(c.tokens, c.rows * block_size), "; ",
             Percent(c.learnt, c.tokens), " of their tokens are learnt");
  if (c.too_long > 0) {
    note += StrCat("; ", c.too_long, " of more than ", block_size, " tokens ",
                   if_long == "cut" ? "cut" : "left out", " (the longest has ", c.most_tokens,
                   ": --model.block_size, --data.if_long)");
  }
  if (c.not_learnt > 0) note += StrCat("; ", c.not_learnt, " left out because nothing is learnt");
  if (c.empty > 0) {
    note += StrCat("; ", c.empty, " left out because of an empty message (the first: ", first_empty,
                   ")");
  }
  if (bad_utf8 > 0) note += StrCat("; ", bad_utf8, " malformed parts of UTF-8 became U+FFFD");
  return note;
}

struct PlacedRow {
  OrderedJson row;
  std::string place;
};

// The first row of JSONL that can be read.
std::optional<PlacedRow> FirstRow(const std::string& path) try {
  if (path.empty() || path.ends_with(".bin")) return std::nullopt;
  const std::vector<std::string> files = ListTextFiles(std::vector{path});
  if (!IsJsonLinesName(files.front())) return std::nullopt;
  ConversationReader reader(files);
  PlacedRow first;
  std::string line;
  if (!reader.NextLine(&line, &first.place)) return std::nullopt;
  first.row = ParseRow(line, first.place);
  return first;
} catch (const Error&) {
  return std::nullopt;
}

}  // namespace

bool HoldsConversations(const std::string& path, const std::string& field) {
  if (path == "-") {
    throw InputError(
        "standard input may be text or conversations: say which with --data.format=text or "
        "--data.format=chat");
  }
  const auto first = FirstRow(path);
  if (!first || !LooksLikeConversation(first->row)) return false;
  if (!first->row.contains(field) || !first->row[field].is_string()) return true;
  throw InputError(StrCat(first->place, ": this row has the text field ", Quoted(field),
                          " and is also a conversation: choose with --data.format=chat or ",
                          "--data.format=text"));
}

ConversationDataset OpenConversations(const DatasetOptions& options,
                                      const ConversationOptions& conversation_options) {
  const std::string& if_long = conversation_options.if_long;
  LS_CHECK(if_long == "drop" || if_long == "cut" || if_long == "error", "if_long=", if_long,
           ": expected drop, cut or error");
  LS_CHECK(options.block_size >= 1, "block_size=", options.block_size, ": expected at least 1");
  LS_CHECK(options.val_fraction >= 0 && options.val_fraction < 1,
           "val_fraction=", options.val_fraction, ": expected 0 <= val_fraction < 1");
  ConversationDataset result;
  ConversationCounts& counts = result.counts;
  const auto shared_counts = std::as_writable_bytes(std::span(&counts, 1));
  if (TakeShared(options, shared_counts, &result.dataset)) return result;
  const ModelTemplate model = LoadModelTemplate(
      conversation_options.chat_template, conversation_options.folders, TokenizerForChat(options));
  const ConversationEncoder encoder(model.chat_template, model.tokenizer,
                                    conversation_options.special_tokens_of_users);
  EncodedConversations all;
  std::string first_empty;
  const int64_t bad_utf8 = EncodeRows(
      options.path,
      [&](const OrderedJson& row, const std::string& place) {
        const Conversation conversation = ToConversation(row, place);
        if (conversation.empty) return EncodedRow{};
        return EncodedRow{encoder.Encode(conversation)};
      },
      [&](EncodedRow row, const std::string& place) {
        if (row.empty()) {
          if (++counts.empty == 1) first_empty = place;
          return;
        }
        Append(std::move(row[0]), place, options.block_size, if_long, &all, &counts);
      });
  if (!all.ids.empty()) CheckVocabulary(*std::ranges::max_element(all.ids), options);
  const RowSplit split = SplitRows(all.size(), options.val_fraction);
  if (split.train.empty() || (options.val_fraction > 0 && split.val.empty())) {
    throw InputError(StrCat(
        options.path, ": ", all.size(), " conversations are left",
        counts.too_long > 0
            ? StrCat(", without ", counts.too_long, " of more than ", options.block_size,
                     " tokens (the longest has ", counts.most_tokens, ": --model.block_size)")
            : "",
        counts.not_learnt > 0
            ? StrCat(", and without ", counts.not_learnt, " in which nothing is learnt")
            : "",
        counts.empty > 0 ? StrCat(", and without ", counts.empty, " with an empty message") : "",
        "; too few for training and validation: use more data, or another --data.val_fraction ",
        "(0 turns validation off; now ", options.val_fraction, ")"));
  }
  Dataset& dataset = result.dataset;
  dataset.tokenizer = model.tokenizer;
  dataset.vocab_size = model.tokenizer->vocab_size();
  dataset.name = options.path;
  dataset.fingerprint = Fingerprint(all, split);
  dataset.train = Pack(all, split.train, options.block_size, &counts.rows);
  if (!split.val.empty()) {
    int64_t rows = 0;
    dataset.val = Pack(all, split.val, options.block_size, &rows);
    counts.rows += rows;
  }
  dataset.note = NoteOn(options.path, counts, options.block_size, if_long, first_empty, bad_utf8);
  Share(options, shared_counts, &dataset);
  return result;
}

std::string ShowRow(const TokenSource& source, const Tokenizer& tokenizer, int64_t row,
                    int64_t block_size, const std::string& begin, const std::string& end) {
  const auto size = static_cast<size_t>(block_size);
  std::vector<int32_t> ids(size), starts(size), learnt(size);
  source.Read(row * block_size, ids);
  source.ReadDocumentStarts(row * block_size, starts);
  source.ReadLossMask(row * block_size, learnt);
  // What fills the row up is the document behind the last answer.
  const auto last = std::ranges::find(learnt.rbegin(), learnt.rend(), 1).base();
  const auto filler = std::ranges::find(starts.begin() + (last - learnt.begin()), starts.end(), 1);
  std::string text;
  bool open = false;
  for (size_t i = 0; i < static_cast<size_t>(filler - starts.begin()); ++i) {
    if (open && learnt[i] == 0) text += end;
    if (starts[i] != 0 && i > 0 && !text.ends_with('\n')) text += '\n';
    if (!open && learnt[i] != 0) text += begin;
    open = learnt[i] != 0;
    text += tokenizer.TokenText(ids[i]);
  }
  return open ? text + end : text;
}

}  // namespace lockstep::data
