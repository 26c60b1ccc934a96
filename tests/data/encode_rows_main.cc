// Encodes conversations, for tests/peers/compare_conversations.py:
//   encode_rows FOLDER ROWS.jsonl [specials] > RESULTS
// FOLDER has a tokenizer and chat templates. Each line of RESULTS is a JSON object with "text",
// "ids" and "learnt" (01...) of a row, or with "left_out", or with "error". With "specials",
// special tokens that users spell are tokens.
#include <cstdio>
#include <iostream>
#include <string>
#include <string_view>

#include "core/error.h"
#include "core/io/json.h"
#include "data/conversations/conversation_encoder.h"
#include "data/conversations/model_template.h"

namespace {

using lockstep::OrderedJson;
using namespace lockstep;

OrderedJson Encode(const data::ConversationEncoder& encoder, const std::string& line,
                   const std::string& place) try {
  const data::Conversation conversation = data::ToConversation(data::ParseRow(line, place), place);
  if (conversation.empty) return {{"left_out", true}};
  const data::EncodedConversation encoded = encoder.Encode(conversation);
  std::string learnt;
  for (const uint8_t one : encoded.learnt) learnt += one != 0 ? '1' : '0';
  return {{"text", encoder.Render(conversation).text}, {"ids", encoded.ids}, {"learnt", learnt}};
} catch (const InputError& error) {
  return {{"error", error.what()}};
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 3) {
    std::fprintf(stderr, "usage: encode_rows FOLDER ROWS.jsonl [specials]\n");
    return 2;
  }
  const data::ModelTemplate model =
      data::LoadModelTemplate("", {argv[1]}, data::LoadTokenizer(argv[1]));
  const data::ConversationEncoder encoder(model.chat_template, model.tokenizer,
                                          argc > 3 && std::string_view(argv[3]) == "specials");
  data::ConversationReader reader({argv[2]});
  for (std::string line, place; reader.NextLine(&line, &place);) {
    std::cout << Encode(encoder, line, place).dump() << '\n';
  }
  return 0;
} catch (const Error& error) {
  std::fprintf(stderr, "encode_rows: %s\n", error.what());
  return 1;
}
