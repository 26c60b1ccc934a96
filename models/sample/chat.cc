#include "models/sample/chat.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "data/conversations/conversation_encoder.h"
#include "data/conversations/model_template.h"
#include "models/sample/text_stream.h"

namespace lockstep::models {
namespace {

constexpr std::string_view kSpace = " \t\r\n";

class Chatting {
 public:
  Chatting(Gpt& model, const data::ModelTemplate& with, const ChatOptions& options)
      : model_(model),
        options_(options),
        context_(model.config().block_size),
        slide_(SlideOf(options.generate.slide, context_)),
        tokenizer_(*with.tokenizer),
        encoder_(with.chat_template, with.tokenizer),
        ends_(encoder_.EndsOfAnswers()) {
    said_.place = "the conversation";
    if (!options.system.empty()) data::AppendMessages(options.system, "system", "system", &said_);
  }

  void Answer(const std::string& message) {
    const data::Conversation before = said_;
    data::AppendMessages(message, "user", "message", &said_);
    const std::vector<int32_t> prompt = Prompt();
    if (prompt.empty()) {
      said_ = before;
      return;
    }
    TextStream stream(options_.stop);
    std::string answer;
    const auto show = [&](std::string text) {
      if (answer.empty()) text.erase(0, text.find_first_not_of(kSpace));
      answer += text;
      if (options_.to == nullptr) return;
      std::fputs(text.c_str(), options_.to);
      std::fflush(options_.to);
    };
    // The context's last token still has a next one.
    const int64_t room = context_ + 1 - std::ssize(prompt);
    GenerateOptions generate = options_.generate;
    generate.tokens = std::min(generate.tokens, room);
    bool ended = false;
    const std::vector<int32_t> ids = Generate(
        model_, prompt, std::min(tokenizer_.vocab_size(), model_.config().vocab_size), generate,
        [&](int32_t id) {
          ended = std::ranges::find(ends_, id) != ends_.end();
          if (!ended) show(stream.Push(tokenizer_.TokenText(id)));
          ended = ended || stream.stopped();
          return !ended;
        },
        &kept_, &stats_);
    show(stream.Finish());
    if (options_.to != nullptr) std::fputs("\n", options_.to);
    if (!ended && std::ssize(ids) == room && room < options_.generate.tokens) {
      Say(StrCat("the answer ends where the model's context of ", context_, " tokens does"));
    }
    said_.messages.push_back({{"role", "assistant"}, {"content", answer}});
    said_.learnt.push_back(false);
  }

  const GenerateStats& stats() const { return stats_; }

 private:
  // Forgets what does not fit. Empty if the last message alone does not.
  std::vector<int32_t> Prompt() {
    const size_t first = options_.system.empty() ? 0 : 1;
    int64_t most = context_ - std::max<int64_t>(1, std::min(options_.generate.tokens, slide_ / 2));
    int64_t forgotten = 0;
    std::vector<int32_t> ids = encoder_.EncodePrompt(said_);
    while (std::ssize(ids) > most && said_.messages.size() > first + 1) {
      const auto oldest = static_cast<std::ptrdiff_t>(first);
      auto& messages = said_.messages.list();
      messages.erase(messages.begin() + oldest, messages.begin() + oldest + 2);
      said_.learnt.erase(said_.learnt.begin() + oldest, said_.learnt.begin() + oldest + 2);
      ++forgotten;
      most = context_ - slide_;
      ids = encoder_.EncodePrompt(said_);
    }
    if (std::ssize(ids) >= context_) {
      Say(StrCat("this message makes ", ids.size(), " tokens, but the model's context has ",
                 context_, " for it and the answer: it is left out; say it in fewer words"));
      return {};
    }
    if (forgotten > 0) {
      Say(StrCat("the conversation is longer than the model's context of ", context_,
                 " tokens; what was said first is forgotten: ", forgotten,
                 forgotten == 1 ? " message and its answer" : " messages and their answers"));
    }
    return ids;
  }

  void Say(const std::string& text) const {
    if (options_.to != nullptr) std::fprintf(stderr, "sample_gpt: %s\n", text.c_str());
  }

  Gpt& model_;
  const ChatOptions& options_;
  const int64_t context_, slide_;  // tokens
  const data::Tokenizer& tokenizer_;
  const data::ConversationEncoder encoder_;
  const std::vector<int32_t> ends_;
  data::Conversation said_;
  ContextCache kept_;
  GenerateStats stats_;
};

}  // namespace

GenerateStats Chat(Gpt& model, std::shared_ptr<const data::Tokenizer> tokenizer,
                   const ChatOptions& options) {
  const data::ModelTemplate with =
      data::LoadModelTemplate(options.chat_template, {options.folder}, std::move(tokenizer));
  Chatting chatting(model, with, options);
  while (const std::optional<std::string> message = options.next_message()) {
    if (message->find_first_not_of(kSpace) != std::string::npos) chatting.Answer(*message);
  }
  return chatting.stats();
}

}  // namespace lockstep::models
