#include "models/train/sample_prompt.h"

#include <algorithm>
#include <string>

#include "data/conversations/conversation_encoder.h"
#include "data/conversations/conversation_mixture.h"
#include "data/conversations/model_template.h"

namespace lockstep::models {
namespace {

// The tokens up to the first that is learnt, in a first row.
std::vector<int32_t> UpToAnAnswer(const data::TokenSource& source, int64_t row) {
  std::vector<int32_t> ids(static_cast<size_t>(std::min(row, source.size()))), learnt(ids.size());
  source.Read(0, ids);
  source.ReadLearnt(0, learnt);
  ids.resize(static_cast<size_t>(std::ranges::find(learnt, 1) - learnt.begin()));
  return ids;
}

}  // namespace

SamplePrompt MakeSamplePrompt(const RunSetup& setup, const data::Tokenizer& tokenizer) {
  const std::string& text = setup.config.train.sample_prompt;
  if (!setup.conversations && !setup.prefers()) return {tokenizer.Encode(text), {}};
  const data::ConversationEncoder encoder(data::TemplateOf(tokenizer), setup.dataset.tokenizer,
                                          setup.config.data.user_special_tokens);
  SamplePrompt prompt{{}, encoder.EndsOfAnswers()};
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) {
    const data::Dataset& data = setup.dataset;
    const auto rows = data.val && data.mixture.empty() ? data.val : data::ConversationRows(data);
    prompt.ids = UpToAnAnswer(*rows, setup.window);
    return prompt;
  }
  data::Conversation conversation;
  conversation.place = "the prompt";
  data::AppendMessages(text, "user", "prompt", &conversation);
  prompt.ids = encoder.EncodePrompt(conversation);
  return prompt;
}

}  // namespace lockstep::models
