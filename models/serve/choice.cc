#include "models/serve/choice.h"

#include <algorithm>
#include <utility>

#include "core/io/json.h"
#include "data/utf8.h"

namespace lockstep::models {
namespace {

// A token's text; if that is no UTF-8, its bytes as OpenAI writes them, so that different tokens
// have different names.
std::string NameOf(const std::string& bytes) {
  if (data::ValidUtf8Prefix(bytes) == bytes.size()) return bytes;
  constexpr char kDigits[] = "0123456789abcdef";
  std::string name = "bytes:";
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    name += {'\\', 'x', kDigits[byte / 16], kDigits[byte % 16]};
  }
  return name;
}

// As in a chat: {"token": ..., "logprob": ..., "bytes": [...]}.
OrderedJson Described(const std::string& bytes, double log_probability) {
  OrderedJson list = OrderedJson::array();
  for (const char c : bytes) list.push_back(static_cast<unsigned char>(c));
  return {{"token", NameOf(bytes)}, {"logprob", log_probability}, {"bytes", std::move(list)}};
}

}  // namespace

Choice::Choice(const Call& call, const ServedModel& model, int64_t index)
    : call_(call), model_(model), index_(index), stream_(call.stop) {
  if (!call.echo) return;
  const auto prompt = static_cast<size_t>(index / call.n);
  text_ = call.prompt_texts[prompt];
  shown_ = true;
  if (call.likeliest >= 0) Note({.id = call.prompts[prompt][0]}, /*scored=*/false);
}

bool Choice::Push(const ScoredToken& token) {
  ++tokens_;
  if (call_.likeliest >= 0) Note(token, /*scored=*/true);
  by_end_ = std::ranges::find(call_.ends, token.id) != call_.ends.end();
  if (!by_end_) Show(stream_.Push(model_.tokenizer->TokenText(token.id)));
  return !by_end_ && !stream_.stopped();
}

void Choice::End() {
  Show(stream_.Finish());
  ended_ = true;
}

void Choice::Show(std::string text) {
  // An answer begins with its first word, as in sample_gpt --chat.
  if (call_.chat && !shown_) text.erase(0, text.find_first_not_of(" \t\r\n"));
  shown_ = shown_ || !text.empty();
  text_ += text;
}

void Choice::Note(const ScoredToken& token, bool scored) {
  noted_.push_back({token, scored, offset_});
  const std::string bytes = model_.tokenizer->TokenText(token.id);
  // Of a character that several tokens make, each byte that is no continuation counts.
  offset_ += std::ranges::count_if(
      bytes, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

OrderedJson Choice::TakeLogProbabilities() {
  if (call_.likeliest < 0) return nullptr;
  const auto text = [&](int32_t id) { return model_.tokenizer->TokenText(id); };
  OrderedJson content = OrderedJson::array(), tokens = content, own = content, top = content,
              offsets = content;
  for (const auto& [token, scored, offset] : std::exchange(noted_, {})) {
    const std::string bytes = text(token.id);
    if (call_.chat) {
      OrderedJson described = Described(bytes, token.log_probability),
                  others = OrderedJson::array();
      for (const auto& [id, value] : token.likeliest) others.push_back(Described(text(id), value));
      described["top_logprobs"] = std::move(others);
      content.push_back(std::move(described));
      continue;
    }
    tokens.push_back(NameOf(bytes));
    offsets.push_back(offset);
    own.push_back(scored ? OrderedJson(token.log_probability) : OrderedJson());
    // The likelier of two tokens that are called the same.
    OrderedJson named = OrderedJson::object();
    for (const auto& [id, value] : token.likeliest) named.emplace(NameOf(text(id)), value);
    named.emplace(NameOf(bytes), token.log_probability);
    top.push_back(scored ? std::move(named) : OrderedJson());
  }
  if (call_.chat) return {{"content", std::move(content)}};
  return {{"tokens", std::move(tokens)},
          {"token_logprobs", std::move(own)},
          {"top_logprobs", std::move(top)},
          {"text_offset", std::move(offsets)}};
}

OrderedJson Choice::Take(bool of_stream) {
  OrderedJson choice = {{"index", index_}};
  std::string text = std::exchange(text_, {});
  if (!call_.chat) {
    choice["text"] = std::move(text);
  } else {
    OrderedJson message = OrderedJson::object();
    if (!std::exchange(told_role_, true)) message["role"] = "assistant";
    message["content"] = std::move(text);
    choice[of_stream ? "delta" : "message"] = std::move(message);
  }
  choice["logprobs"] = TakeLogProbabilities();
  told_end_ = ended_;
  choice["finish_reason"] = !ended_                        ? OrderedJson()
                            : by_end_ || stream_.stopped() ? OrderedJson("stop")
                                                           : OrderedJson("length");
  return choice;
}

}  // namespace lockstep::models
