#include "models/serve/call.h"

#include <algorithm>

#include "core/io/json.h"
#include "data/conversations/conversation.h"
#include "models/options/suggest.h"
#include "models/sample/encode_prompt.h"

namespace lockstep::models {
namespace {

constexpr int64_t kMostChoices = 1024, kMostLikeliest = 20, kMostStops = 64, kMostTokens = 1 << 24;
constexpr size_t kLongestStop = 1024;

[[noreturn]] void Refuse(const std::string& name, const std::string& what) {
  throw RequestError(400, StrCat("\"", name, "\" ", what), name);
}

// The fields of a request, each of which somebody must ask for.
class Fields {
 public:
  explicit Fields(std::string_view body) {
    try {
      object_ = ParseJson(body, "the request");
    } catch (const InputError& e) {
      throw RequestError(400, e.what());
    }
    if (!object_.is_object()) {
      throw RequestError(400,
                         StrCat("the request must be a JSON object, not ", object_.type_name()));
    }
  }

  // Null if it is missing or null.
  const Json* Find(const std::string& name) {
    known_.push_back({name});
    const Json* found = object_.Find(name);
    return found == nullptr || found->is_null() ? nullptr : found;
  }

  std::optional<int64_t> Integer(const std::string& name, int64_t least, int64_t most) {
    const Json* value = Find(name);
    if (value == nullptr) return {};
    try {
      return IntegerOf(*value, least, most);
    } catch (const InputError&) {
      Refuse(name, StrCat("must be an integer from ", least, " to ", most));
    }
  }

  double Number(const std::string& name, double otherwise, double least, double most) {
    const Json* value = Find(name);
    if (value == nullptr) return otherwise;
    if (!value->is_number() || !(value->get<double>() >= least && value->get<double>() <= most)) {
      Refuse(name, StrCat("must be a number from ", least, " to ", most));
    }
    return value->get<double>();
  }

  bool Flag(const std::string& name) {
    const Json* value = Find(name);
    if (value != nullptr && !value->is_boolean()) Refuse(name, "must be true or false");
    return value != nullptr && value->get<bool>();
  }

  // A text or a list of texts.
  std::vector<std::string> Texts(const std::string& name, int64_t most) {
    const Json* value = Find(name);
    if (value == nullptr) return {};
    std::vector<std::string> texts;
    for (const Json& text : value->is_array() ? *value : Json::array({*value})) {
      if (!text.is_string()) Refuse(name, "must be a text, or a list of texts");
      texts.push_back(text.get<std::string>());
    }
    if (std::ssize(texts) > most) Refuse(name, StrCat("has more than ", most, " texts"));
    return texts;
  }

  // What changes nothing here, and may have any value.
  void Ignore(std::initializer_list<const char*> names) {
    for (const char* name : names) Find(name);
  }

  // What would change the answer, and may only ask for what is done anyway.
  void Without(std::initializer_list<const char*> names) {
    for (const char* name : names) {
      const Json* value = Find(name);
      if (value == nullptr || *value == 0 || *value == false || *value == "") continue;
      if (value->is_structured() && value->empty()) continue;
      Refuse(name, "is not supported by this server: leave it out");
    }
  }

  // Call it last.
  void CheckAllKnown() const {
    for (const auto& [key, value] : object_.items()) {
      const auto is_key = [&key = key](const Candidate& c) { return c.key == key; };
      if (std::ranges::any_of(known_, is_key)) continue;
      const std::vector<std::string> nearest = Nearest(key, known_);
      throw RequestError(400,
                         StrCat("unknown field ", Quoted(key),
                                nearest.empty() ? "" : StrCat("; did you mean ", nearest[0], "?")),
                         key);
    }
  }

 private:
  Json object_;
  std::vector<Candidate> known_;
};

void ParseCommon(Fields& fields, Call* call) {
  call->stream = fields.Flag("stream");
  if (const Json* options = fields.Find("stream_options")) {
    const Json usage = options->is_object() ? options->value("include_usage", Json(false)) : Json();
    if (!usage.is_boolean())
      Refuse("stream_options", "must be {\"include_usage\": true}, or false");
    call->include_usage = usage.get<bool>();
  }
  call->n = fields.Integer("n", 1, kMostChoices).value_or(1);
  call->sampling = {
      .repetition_penalty = fields.Number("repetition_penalty", 1, 0.01, 100),
      .temperature = fields.Number("temperature", 1, 0, 100),
      // -1 is vLLM's word for all.
      .top_k = std::max<int64_t>(0, fields.Integer("top_k", -1, kMostTokens).value_or(0)),
      .top_p = fields.Number("top_p", 1, 1e-9, 1)};
  if (const auto seed = fields.Integer("seed", 0, INT64_MAX)) {
    call->seed = static_cast<uint64_t>(*seed);
  }
  call->stop = fields.Texts("stop", kMostStops);
  for (const std::string& text : call->stop) {
    if (text.empty() || text.size() > kLongestStop) {
      Refuse("stop",
             StrCat("has a text of ", text.size(), " bytes; there may be 1 to ", kLongestStop));
    }
  }
  if (fields.Flag("ignore_eos")) call->ends.clear();
  fields.Ignore({"model", "user", "metadata", "store", "service_tier", "safety_identifier",
                 "prompt_cache_key"});
  fields.Without({"logit_bias", "presence_penalty", "frequency_penalty"});
}

std::vector<int32_t> Ids(const Json& list, int64_t vocab_size) {
  const auto refuse = [&](const std::string& why) {
    Refuse("prompt", StrCat("must be a text or a list of tokens, or a list of these: ", why));
  };
  if (!list.is_array()) refuse(StrCat("found ", list.type_name()));
  std::vector<int32_t> ids;
  for (const Json& id : list) {
    try {
      ids.push_back(static_cast<int32_t>(IntegerOf(id, 0, vocab_size - 1)));
    } catch (const InputError& e) {
      refuse(StrCat(e.what(), ", of a vocabulary of ", vocab_size));
    }
  }
  if (ids.empty()) Refuse("prompt", "has no tokens");
  return ids;
}

void AddPrompt(const Json& prompt, const ServedModel& model, Call* call) {
  if (!prompt.is_string()) {
    call->prompts.push_back(Ids(prompt, model.vocab_size));
    if (call->echo) call->prompt_texts.push_back(model.tokenizer->Decode(call->prompts.back()));
    return;
  }
  const auto& text = prompt.string();
  try {
    call->prompts.push_back(EncodePrompt(text, *model.tokenizer, true, model.vocab_size));
  } catch (const InputError& e) {
    throw RequestError(400, e.what(), "prompt");
  }
  call->prompt_texts.push_back(text);
}

void CheckSizes(const ServedModel& model, const char* field, const Call& call) {
  if (call.choices() > kMostChoices) {
    Refuse("n",
           StrCat("times the number of prompts is ", call.choices(), ", more than ", kMostChoices));
  }
  for (const std::vector<int32_t>& prompt : call.prompts) {
    if (std::ssize(prompt) <= model.context) continue;
    throw RequestError(400,
                       StrCat("the prompt has ", prompt.size(), " tokens, but the context of this ",
                              "model has ", model.context, ": shorten it"),
                       field, "context_length_exceeded");
  }
}

}  // namespace

std::string RequestError::ToJson() const {
  const auto text = [](const std::string& s) { return s.empty() ? Json() : Json(s); };
  const char* type = status_ < 500 ? "invalid_request_error" : "server_error";
  return OrderedJson{
      {"error",
       {{"message", what()}, {"type", type}, {"param", text(param_)}, {"code", text(code_)}}}}
      .dump();
}

Call ParseCompletion(std::string_view body, const ServedModel& model) {
  Fields fields(body);
  Call call{.ends = model.ends_of_texts};
  ParseCommon(fields, &call);
  call.echo = fields.Flag("echo");
  call.tokens = fields.Integer("max_tokens", 0, kMostTokens).value_or(16);
  if (call.tokens == 0 && !call.echo) Refuse("max_tokens", "may only be 0 with \"echo\": true");
  call.likeliest = fields.Integer("logprobs", 0, kMostLikeliest).value_or(-1);
  if (fields.Integer("best_of", 1, kMostChoices).value_or(call.n) != call.n) {
    Refuse("best_of", "is not supported by this server, unless it is n");
  }
  fields.Without({"suffix"});
  const Json* prompt = fields.Find("prompt");
  fields.CheckAllKnown();
  if (prompt == nullptr) Refuse("prompt", "is missing");
  const bool several = prompt->is_array() && !prompt->empty() &&
                       ((*prompt)[0].is_string() || (*prompt)[0].is_array());
  if (several && std::ssize(*prompt) > kMostChoices) {
    Refuse("prompt", StrCat("is a list of more than ", kMostChoices, " prompts"));
  }
  for (const Json& one : several ? *prompt : Json::array({*prompt})) AddPrompt(one, model, &call);
  CheckSizes(model, "prompt", call);
  return call;
}

Call ParseChat(std::string_view body, const ServedModel& model) {
  Fields fields(body);
  if (!model.conversations) {
    throw RequestError(400,
                       "this model has no chat template: use /v1/completions, or start the server "
                       "with --chat_template");
  }
  Call call{.chat = true, .ends = model.ends_of_answers};
  ParseCommon(fields, &call);
  call.tokens = fields.Integer("max_tokens", 1, kMostTokens);
  if (const auto tokens = fields.Integer("max_completion_tokens", 1, kMostTokens)) {
    call.tokens = tokens;
  }
  const std::optional<int64_t> likeliest = fields.Integer("top_logprobs", 0, kMostLikeliest);
  if (fields.Flag("logprobs")) {
    call.likeliest = likeliest.value_or(0);
  } else if (likeliest.value_or(0) > 0) {
    Refuse("top_logprobs", "needs \"logprobs\": true");
  }
  fields.Without({"tools", "functions"});
  fields.Ignore({"tool_choice", "function_call", "parallel_tool_calls"});
  if (const Json* format = fields.Find("response_format")) {
    if (!format->is_object() || format->value("type", Json()) != "text") {
      Refuse("response_format", "is not supported by this server, except {\"type\": \"text\"}");
    }
  }
  data::Conversation conversation{.place = "the request"};
  if (const Json* variables = fields.Find("chat_template_kwargs")) {
    if (!variables->is_object()) Refuse("chat_template_kwargs", "must be an object");
    conversation.variables = *variables;
  }
  const Json* messages = fields.Find("messages");
  fields.CheckAllKnown();
  if (messages == nullptr || !messages->is_array() || messages->empty()) {
    Refuse("messages", "must be a list of messages that is not empty");
  }
  try {
    data::AppendMessages(*messages, "", "messages", &conversation);
    call.prompts.push_back(model.conversations->EncodePrompt(conversation));
  } catch (const InputError& e) {
    throw RequestError(400, e.what(), "messages");
  }
  for (const int32_t id : call.prompts[0]) {
    if (id >= model.vocab_size) {
      throw RequestError(400,
                         StrCat("token ", id, " of the messages is not in the model's ",
                                "vocabulary of ", model.vocab_size),
                         "messages");
    }
  }
  CheckSizes(model, "messages", call);
  return call;
}

}  // namespace lockstep::models
