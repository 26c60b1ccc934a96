#include "models/train/run_generation.h"

#include <algorithm>
#include <optional>

#include "core/io/file.h"
#include "data/conversations/conversation_encoder.h"
#include "data/conversations/conversation_mixture.h"
#include "data/conversations/model_template.h"
#include "models/gpt/hf/generation_config.h"

namespace lockstep::models {
namespace {

// None where the data are neither conversations nor pairs of answers.
std::optional<data::ConversationEncoder> EncoderOf(const RunSetup& setup) {
  if (!setup.conversations && !setup.prefers()) return {};
  const std::shared_ptr<const data::Tokenizer>& tokenizer = setup.dataset.tokenizer;
  return data::ConversationEncoder(data::TemplateOf(*tokenizer), tokenizer,
                                   setup.config.data.user_special_tokens);
}

// The tokens up to the first that is learnt, in a first row.
std::vector<int32_t> UpToAnAnswer(const data::TokenSource& source, int64_t row) {
  std::vector<int32_t> ids(static_cast<size_t>(std::min(row, source.size()))), learnt(ids.size());
  source.Read(0, ids);
  source.ReadLossMask(0, learnt);
  ids.resize(static_cast<size_t>(std::ranges::find(learnt, 1) - learnt.begin()));
  return ids;
}

}  // namespace

SamplePrompt MakeSamplePrompt(const RunSetup& setup, const data::Tokenizer& tokenizer) {
  const std::string& text = setup.config.train.sample_prompt;
  const auto encoder = EncoderOf(setup);
  if (!encoder) return {tokenizer.Encode(text), {}};
  SamplePrompt prompt{{}, encoder->EndsOfAnswers()};
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) {
    const data::Dataset& data = setup.dataset;
    const auto rows = data.val && data.mixture.empty() ? data.val : data::ConversationRows(data);
    prompt.ids = UpToAnAnswer(*rows, setup.window());
    return prompt;
  }
  data::Conversation conversation;
  conversation.place = "the prompt";
  data::AppendMessages(text, "user", "prompt", &conversation);
  prompt.ids = encoder->EncodePrompt(conversation);
  return prompt;
}

std::string GenerationConfigOf(const RunSetup& setup) {
  if (setup.model.lora.rank > 0 || !setup.dataset.tokenizer) return "";
  const data::Tokenizer& tokenizer = *setup.dataset.tokenizer;
  const std::string& from = setup.weights;
  const std::string file = JoinPath(from, kGenerationConfig);
  const std::string given = !from.empty() && PathExists(file) ? ReadFile(file) : "";
  std::vector<int32_t> ends;
  if (setup.conversations) ends = EncoderOf(setup)->EndsOfAnswers();
  const bool known = tokenizer.special_ids().eos || tokenizer.end_of_text() || !ends.empty();
  return known || !given.empty() ? GenerationConfig(&tokenizer, ends, given, file) : "";
}

}  // namespace lockstep::models
