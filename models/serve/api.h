// The paths of the server: OpenAI's, and a page.
#pragma once

#include "models/serve/engine.h"
#include "models/serve/http_server.h"
#include "models/serve/served_model.h"

namespace lockstep::models {

// Answers
//   GET  /                      the chat page
//   GET  /health                {"status": "ok"}
//   GET  /v1/models             the one model, with its context and whether it has a chat template
//   POST /v1/completions        Call, Answer
//   POST /v1/chat/completions   the same
// and anything else, and what goes wrong, with OpenAI's errors. All of it must outlive the server;
// somebody must Run the engine. Whatever name of a model a request has, it is for this one.
HttpServer::Handler MakeApi(const ServedModel& model, Engine& engine);

}  // namespace lockstep::models
