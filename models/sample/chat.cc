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
        tokenizer_(*with.tokenizer),
        encoder_(with.chat_template, with.tokenizer),
        ends_{encoder_.EndOfAnswer()} {
    if (const auto eos = tokenizer_.special_ids().eos) ends_.push_back(*eos);
    if (const auto end = tokenizer_.end_of_text()) ends_.push_back(*end);
    said_.place = "the conversation";
    if (!options.system.empty()) data::AppendMessages(options.system, "system", "system", &said_);
  }

  void Answer(const std::string& message) {
    data::AppendMessages(message, "user", "message", &said_);
    const std::vector<int32_t> prompt = Prompt();
    TextStream stream(options_.stop);
    std::string answer;
    const auto show = [&](std::string text) {
      if (answer.empty()) text.erase(0, text.find_first_not_of(kSpace));
      answer += text;
      if (options_.to == nullptr) return;
      std::fputs(text.c_str(), options_.to);
      std::fflush(options_.to);
    };
    const int64_t vocabulary = model_.config().vocab_size;
    Generate(model_, prompt, std::min(tokenizer_.vocab_size(), vocabulary), options_.generate,
             [&](int32_t id) {
               if (std::ranges::find(ends_, id) != ends_.end()) return false;
               show(stream.Push(tokenizer_.TokenText(id)));
               return !stream.stopped();
             });
    show(stream.Finish());
    if (options_.to != nullptr) std::fputs("\n", options_.to);
    said_.messages.push_back({{"role", "assistant"}, {"content", answer}});
    said_.learnt.push_back(false);
  }

 private:
  // Leaves room for one token of the answer at least.
  std::vector<int32_t> Prompt() {
    const size_t first = options_.system.empty() ? 0 : 1;
    while (true) {
      std::vector<int32_t> ids = encoder_.EncodePrompt(said_);
      if (std::ssize(ids) < model_.config().block_size) return ids;
      if (said_.messages.size() <= first + 1) {
        throw InputError(StrCat("this message makes ", ids.size(), " tokens, but the model's ",
                                "context has ", model_.config().block_size,
                                " for it and the answer; say it in fewer words"));
      }
      const auto oldest = static_cast<std::ptrdiff_t>(first);
      said_.messages.erase(said_.messages.begin() + oldest, said_.messages.begin() + oldest + 2);
      said_.learnt.erase(said_.learnt.begin() + oldest, said_.learnt.begin() + oldest + 2);
      if (options_.to != nullptr) {
        std::fputs(
            "sample_gpt: the conversation is longer than the model's context; what was "
            "said first is forgotten\n",
            stderr);
      }
    }
  }

  Gpt& model_;
  const ChatOptions& options_;
  const data::Tokenizer& tokenizer_;
  const data::ConversationEncoder encoder_;
  std::vector<int32_t> ends_;
  data::Conversation said_;
};

}  // namespace

void Chat(Gpt& model, std::shared_ptr<const data::Tokenizer> tokenizer,
          const ChatOptions& options) {
  const data::ModelTemplate with =
      data::LoadModelTemplate(options.chat_template, {options.folder}, std::move(tokenizer));
  Chatting chatting(model, with, options);
  while (const std::optional<std::string> message = options.next_message()) {
    if (message->find_first_not_of(kSpace) != std::string::npos) chatting.Answer(*message);
  }
}

}  // namespace lockstep::models
