#include "data/conversations/conversation_encoder.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "data/conversations/content_parts.h"

namespace lockstep::data {
namespace {

using chat::ByteSpan;

// By the texts of the tokens, one after the other; none if they are not the text.
std::optional<std::vector<int64_t>> ByTexts(const Tokenizer& tokenizer, std::string_view text,
                                            std::span<const int32_t> ids,
                                            std::span<const int64_t> borders) {
  std::vector<int64_t> first;
  int64_t at = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    while (first.size() < borders.size() && borders[first.size()] <= at) {
      first.push_back(static_cast<int64_t>(i));
    }
    const std::string token = tokenizer.TokenText(ids[i]);
    std::string_view bytes = token;
    const std::string_view left = text.substr(static_cast<size_t>(at));
    // Llama 2's tokenizers begin each piece with a space that the text does not have.
    if (!left.starts_with(bytes) && bytes.starts_with(' ')) bytes.remove_prefix(1);
    if (!left.starts_with(bytes)) return {};
    at += std::ssize(bytes);
  }
  if (at != std::ssize(text)) return {};
  first.resize(borders.size(), std::ssize(ids));
  return first;
}

// For tokenizers that change the text (NFC): by the tokens of what precedes each border. If these
// are not among the text's, a token lies across the border.
int64_t ByPrefix(const Tokenizer& tokenizer, std::string_view prefix, std::span<const int32_t> ids,
                 bool special_tokens) {
  const std::vector<int32_t> before =
      special_tokens ? tokenizer.EncodeWithSpecials(prefix) : tokenizer.Encode(prefix);
  const int64_t equal = std::ranges::mismatch(before, ids).in1 - before.begin();
  return equal == std::ssize(before) ? equal : std::min(equal + 1, std::ssize(ids));
}

// For each of `borders`, positions in the text in ascending order: the first of `ids` that begins
// there or later, or ids.size(). `ids` are the tokens of `text`, with or without special tokens.
std::vector<int64_t> FirstTokensAt(const Tokenizer& tokenizer, std::string_view text,
                                   std::span<const int32_t> ids, bool special_tokens,
                                   std::span<const int64_t> borders) {
  if (auto first = ByTexts(tokenizer, text, ids, borders)) return *first;
  std::vector<int64_t> first;
  for (const int64_t border : borders) {
    first.push_back(border == std::ssize(text)
                        ? std::ssize(ids)
                        : ByPrefix(tokenizer, text.substr(0, static_cast<size_t>(border)), ids,
                                   special_tokens));
  }
  return first;
}

// A part of a text that is encoded by itself.
struct Piece {
  int64_t begin, end;
  bool special_tokens;
};

// The text as a whole, except contents that spell special tokens, which stay text.
std::vector<Piece> PiecesOf(const RenderedConversation& rendered, const ControlTokens& control) {
  std::vector<Piece> pieces;
  int64_t at = 0;
  const auto add = [&](int64_t end, bool special_tokens) {
    if (end > at) pieces.push_back({at, end, special_tokens});
    at = std::max(at, end);
  };
  for (const ByteSpan& span : rendered.given) {
    if (span.begin < at) continue;
    const auto length = static_cast<size_t>(span.end - span.begin);
    const auto content =
        std::string_view(rendered.text).substr(static_cast<size_t>(span.begin), length);
    if (const ByteSpan token = control.Find(content); token.end == token.begin) continue;
    add(span.begin, true);
    add(span.end, false);
  }
  add(std::ssize(rendered.text), true);
  return pieces;
}

// Puts what a text begins with there (bos), unless it does.
int64_t AddBefore(const Tokenizer& tokenizer, std::vector<int32_t>* ids) {
  const std::vector<int32_t> before = tokenizer.special_ids().before;
  if (ids->size() >= before.size() && std::equal(before.begin(), before.end(), ids->begin())) {
    return 0;
  }
  ids->insert(ids->begin(), before.begin(), before.end());
  return std::ssize(before);
}

// The tokens, and for each of `borders` the first token there or later.
struct Tokens {
  std::vector<int32_t> ids;
  std::vector<int64_t> at_borders;
};

Tokens EncodePieces(const Tokenizer& tokenizer, const std::string& text,
                    const std::vector<Piece>& pieces, std::span<const int64_t> borders) {
  Tokens all;
  for (const Piece& piece : pieces) {
    const auto part = std::string_view(text).substr(static_cast<size_t>(piece.begin),
                                                    static_cast<size_t>(piece.end - piece.begin));
    const std::vector<int32_t> ids =
        piece.special_tokens ? tokenizer.EncodeWithSpecials(part) : tokenizer.Encode(part);
    std::vector<int64_t> inside;
    while (!borders.empty() && borders.front() < piece.end) {
      inside.push_back(borders.front() - piece.begin);
      borders = borders.subspan(1);
    }
    for (const int64_t first : FirstTokensAt(tokenizer, part, ids, piece.special_tokens, inside)) {
      all.at_borders.push_back(std::ssize(all.ids) + first);
    }
    all.ids.insert(all.ids.end(), ids.begin(), ids.end());
  }
  all.at_borders.insert(all.at_borders.end(), borders.size(), std::ssize(all.ids));
  return all;
}

}  // namespace

ConversationEncoder::ConversationEncoder(std::shared_ptr<const ChatTemplate> chat_template,
                                         std::shared_ptr<const Tokenizer> tokenizer,
                                         bool special_tokens_of_users)
    : chat_template_(std::move(chat_template)),
      tokenizer_(std::move(tokenizer)),
      control_(*tokenizer_),
      special_tokens_of_users_(special_tokens_of_users) {}

RenderedConversation ConversationEncoder::Render(const Conversation& conversation) const {
  return RenderConversation(*chat_template_, control_, WithPartsFor(*chat_template_, conversation),
                            special_tokens_of_users_);
}

EncodedConversation ConversationEncoder::Encode(const Conversation& conversation) const {
  const RenderedConversation rendered = Render(conversation);
  std::vector<int64_t> borders;
  for (const ByteSpan& answer : rendered.answers) {
    borders.push_back(answer.begin);
    borders.push_back(answer.end);
  }
  Tokens tokens = EncodePieces(*tokenizer_, rendered.text, PiecesOf(rendered, control_), borders);
  const int64_t before = AddBefore(*tokenizer_, &tokens.ids);
  EncodedConversation encoded{std::move(tokens.ids), {}};
  encoded.learnt.resize(encoded.ids.size());
  for (size_t i = 0; i < tokens.at_borders.size(); i += 2) {
    const int64_t begin = before + tokens.at_borders[i], end = before + tokens.at_borders[i + 1];
    LS_INVARIANT(begin < end, "an answer without tokens");
    std::fill(encoded.learnt.begin() + begin, encoded.learnt.begin() + end, uint8_t{1});
  }
  return encoded;
}

std::vector<int32_t> ConversationEncoder::EncodePrompt(const Conversation& with_parts) const {
  const Conversation conversation = WithPartsFor(*chat_template_, with_parts);
  RenderedConversation rendered;
  rendered.text = chat_template_->Render(conversation.messages, conversation.variables, true).text;
  if (!special_tokens_of_users_) {
    rendered.given = FindGiven(*chat_template_, control_, conversation, rendered.text,
                               /*generation_prompt=*/true);
  }
  Tokens tokens = EncodePieces(*tokenizer_, rendered.text, PiecesOf(rendered, control_), {});
  AddBefore(*tokenizer_, &tokens.ids);
  return std::move(tokens.ids);
}

int32_t ConversationEncoder::EndOfAnswer() const {
  Conversation conversation;
  conversation.place = "a short conversation";
  AppendMessages("Hi", "user", "prompt", &conversation);
  AppendMessages("Hello", "assistant", "completion", &conversation);
  const EncodedConversation encoded = Encode(conversation);
  const auto last = std::ranges::find(encoded.learnt.rbegin(), encoded.learnt.rend(), 1);
  return encoded.ids[static_cast<size_t>(encoded.learnt.rend() - last) - 1];
}

std::vector<int32_t> ConversationEncoder::EndsOfAnswers() const {
  std::vector<int32_t> ends = {EndOfAnswer()};
  if (const auto eos = tokenizer_->special_ids().eos) ends.push_back(*eos);
  if (const auto end = tokenizer_->end_of_text()) ends.push_back(*end);
  return ends;
}

}  // namespace lockstep::data
