#include "models/serve/api.h"

#include <chrono>
#include <ctime>
#include <random>
#include <utility>

#include "core/io/json.h"
#include "models/serve/answer.h"
#include "models/serve/chat_page.h"

namespace lockstep::models {
namespace {

constexpr std::chrono::milliseconds kPatience(100);

// Server-sent events of an answer, which is abandoned with the stream.
class AnswerStream : public BodyStream {
 public:
  explicit AnswerStream(std::shared_ptr<Answer> answer) : answer_(std::move(answer)) {}
  ~AnswerStream() override { answer_->Abandon(); }
  std::optional<std::string> Next() override { return answer_->NextEvents(kPatience); }

 private:
  const std::shared_ptr<Answer> answer_;
};

class Api {
 public:
  Api(const ServedModel& model, Engine& engine)
      : model_(model), engine_(engine), started_(std::time(nullptr)) {}

  ServerResponse Respond(const ServerRequest& request) const {
    try {
      return Route(request);
    } catch (const RequestError& e) {
      return {.status = e.status(), .body = e.ToJson()};
    } catch (const std::exception& e) {
      return {.status = 500, .body = RequestError(500, e.what()).ToJson()};
    }
  }

 private:
  ServerResponse Route(const ServerRequest& request) const {
    const bool chat = request.path == "/v1/chat/completions";
    const bool post = chat || request.path == "/v1/completions";
    const bool get =
        request.path == "/" || request.path == "/health" || request.path == "/v1/models";
    if (!post && !get) {
      throw RequestError(404,
                         StrCat("there is no ", Quoted(request.path), " here, but /, /health, ",
                                "/v1/models, /v1/completions, /v1/chat/completions"));
    }
    if (post ? request.method != "POST" : request.method != "GET" && request.method != "HEAD") {
      throw RequestError(405, StrCat(request.path, " takes ", post ? "POST" : "GET"));
    }
    if (request.path == "/") {
      return {.type = "text/html; charset=utf-8", .body = std::string(ChatPage())};
    }
    if (request.path == "/health") return {.body = R"({"status": "ok"})"};
    return post ? Complete(request, chat) : Models();
  }

  ServerResponse Models() const {
    const OrderedJson model = {{"id", model_.name},
                               {"object", "model"},
                               {"created", started_},
                               {"owned_by", "lockstep"},
                               {"max_model_len", model_.context},
                               {"chat", model_.conversations != nullptr}};
    return {.body = OrderedJson{{"object", "list"}, {"data", OrderedJson::array({model})}}.dump()};
  }

  ServerResponse Complete(const ServerRequest& request, bool chat) const {
    Call call = chat ? ParseChat(request.body, model_) : ParseCompletion(request.body, model_);
    const bool stream = call.stream;
    const uint64_t seed = std::random_device()();
    const std::shared_ptr<Answer> answer = Answer::Start(std::move(call), model_, engine_, seed);
    if (stream) {
      return {.type = "text/event-stream", .stream = std::make_unique<AnswerStream>(answer)};
    }
    while (!answer->Wait(kPatience)) {
      if (!request.client_left()) continue;
      answer->Abandon();
      throw RequestError(503, "the client has left, or the server stops");
    }
    return {.body = answer->Whole()};
  }

  const ServedModel& model_;
  Engine& engine_;
  const int64_t started_;  // seconds since 1970
};

}  // namespace

HttpServer::Handler MakeApi(const ServedModel& model, Engine& engine) {
  return [api = Api(model, engine)](const ServerRequest& request) { return api.Respond(request); };
}

}  // namespace lockstep::models
