// The body of a request to the server, of any content, is refused with a status and a message in
// JSON, or is a call that the model can answer.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "core/error.h"
#include "core/io/json.h"
#include "data/tokenizer/byte_tokenizer.h"
#include "models/serve/call.h"

namespace {

using lockstep::models::Call;
using lockstep::models::RequestError;
using lockstep::models::ServedModel;

const ServedModel& Model() {
  static const ServedModel model = [] {
    constexpr std::string_view kTemplate =
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}";
    ServedModel made = lockstep::models::MakeServedModel(
        "fuzz", {.vocab_size = 256, .block_size = 64},
        std::make_shared<lockstep::data::ByteTokenizer>(), /*chat_template=*/nullptr,
        /*context=*/0);
    // Bytes have no token that ends an answer, which requests do not need.
    made.conversations = std::make_shared<lockstep::data::ConversationEncoder>(
        std::make_shared<lockstep::data::ChatTemplate>(kTemplate, "fuzz"), made.tokenizer);
    return made;
  }();
  return model;
}

void Check(const Call& call) {
  LS_INVARIANT(call.choices() >= 1 && call.choices() <= 1024);
  for (const auto& prompt : call.prompts) {
    LS_INVARIANT(!prompt.empty() && prompt.size() <= 64);
    for (const int32_t id : prompt) LS_INVARIANT(id >= 0 && id < 256);
  }
  LS_INVARIANT(!call.echo || call.prompt_texts.size() == call.prompts.size());
  LS_INVARIANT(!call.tokens || *call.tokens >= (call.echo ? 0 : 1));
  LS_INVARIANT(call.likeliest >= -1 && call.likeliest <= 20);
  for (const std::string& stop : call.stop) LS_INVARIANT(!stop.empty());
  lockstep::models::TokenSampler sampler(call.sampling);  // takes them, or throws
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  for (const auto parse : {lockstep::models::ParseCompletion, lockstep::models::ParseChat}) {
    try {
      Check(parse(body, Model()));
    } catch (const RequestError& error) {
      LS_INVARIANT(error.status() == 400);
      const auto json = lockstep::Json::parse(error.ToJson());
      LS_INVARIANT(!json["error"]["message"].get<std::string>().empty());
    }
  }
  return 0;
}
