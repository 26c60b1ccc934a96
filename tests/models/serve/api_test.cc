// The server by HTTP, with clients of all kinds: raw sockets, so that nothing is hidden.
#include "models/serve/api.h"

#include <arpa/inet.h>
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/io/json.h"
#include "data/utf8.h"
#include "models/gpt/generate.h"
#include "models/sample/text_stream.h"
#include "tests/models/serve/served.h"
#include "tests/sanitized.h"

namespace lockstep::models {
namespace {
using testing::HasSubstr;
using testing::StartsWith;

class Client {
 public:
  explicit Client(int64_t port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    const timeval most{.tv_sec = 60, .tv_usec = 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
  }
  ~Client() { Close(); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  bool Send(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t n = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }
  // Until there are so many bytes, or the server closes.
  std::string Receive(size_t most = ~size_t{0}) const {
    std::string all;
    char part[4096];
    while (all.size() < most) {
      const ssize_t n = recv(fd_, part, std::min(sizeof part, most - all.size()), 0);
      if (n <= 0) break;
      all.append(part, static_cast<size_t>(n));
    }
    return all;
  }
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

 private:
  int fd_;
};

struct Response {
  int status = 0;
  std::string head, body;

  Json Parsed() const { return Json::parse(body); }
};

Response Parse(const std::string& all) {
  Response response;
  const size_t end = all.find("\r\n\r\n");
  if (!all.starts_with("HTTP/1.1 ") || end == std::string::npos) return response;
  response.status = std::stoi(all.substr(9, 3));
  response.head = all.substr(0, end);
  response.body = all.substr(end + 4);
  if (response.head.find("chunked") == std::string::npos) return response;
  std::string chunks = std::exchange(response.body, "");
  while (!chunks.empty()) {
    const size_t line = chunks.find("\r\n");
    const size_t size = std::stoul(chunks.substr(0, line), nullptr, 16);
    response.body += chunks.substr(line + 2, size);
    chunks.erase(0, line + 2 + size + 2);
  }
  return response;
}

std::string Post(const std::string& path, const std::string& body) {
  return StrCat("POST ", path,
                " HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: ", body.size(),
                "\r\n\r\n", body);
}

// The data of server-sent events.
std::vector<std::string> Events(const std::string& body) {
  std::vector<std::string> events;
  for (size_t at = 0; at < body.size();) {
    const size_t end = body.find("\n\n", at);
    EXPECT_EQ(body.substr(at, 6), "data: ");
    events.push_back(body.substr(at + 6, end - at - 6));
    at = end + 2;
  }
  return events;
}

class ApiTest : public testing::Test {
 protected:
  explicit ApiTest(int64_t max_queue = 1024, int64_t patience = 30)
      : model_(test::MakeModel(test::Gpt2Shape())),
        served_(test::MakeServed(test::Gpt2Shape())),
        engine_(*model_, test::kVocabulary, {.max_batch = 16, .max_queue = max_queue}),
        server_(std::make_unique<HttpServer>(
            ServerOptions{.max_body = 100'000, .patience = patience}, MakeApi(served_, engine_))),
        runs_([this] { engine_.Run([this] { return stop_.load(); }); }) {}
  ~ApiTest() override { Stop(); }

  void Stop() {
    stop_ = true;
    if (runs_.joinable()) runs_.join();
    server_.reset();
  }

  std::string Raw(const std::string& bytes) const {
    Client client(server_->port());
    client.Send(bytes);
    return client.Receive();
  }
  Response Ask(const std::string& path, const Json& body) const {
    return Parse(Raw(Post(path, body.dump())));
  }
  Response Get(const std::string& path) const {
    return Parse(Raw("GET " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
  }

  // What sample_gpt prints after the prompt.
  std::string Sampled(const std::string& prompt, const GenerateOptions& options, int64_t sample = 0,
                      const std::vector<std::string>& stop = {}) const {
    // A model of its own, since the other one is the engine's.
    const auto model = test::MakeModel(test::Gpt2Shape());
    TextStream stream(stop);
    std::string text;
    const std::vector<GenerateSequence> one = {
        {.prompt = served_.tokenizer->Encode(prompt), .sample = sample}};
    GenerateBatch(*model, one, test::kVocabulary, options, [&](int64_t, int32_t id) {
      if (id == test::kEndOfText) return false;
      text += stream.Push(served_.tokenizer->TokenText(id));
      return !stream.stopped();
    });
    return text + stream.Finish();
  }

  // Whether the server answers as it should.
  void ExpectHealthy() const {
    const Response response =
        Ask("/v1/completions", {{"prompt", "ab"}, {"max_tokens", 5}, {"seed", 3}});
    ASSERT_EQ(response.status, 200) << response.body;
    EXPECT_EQ(response.Parsed()["choices"][0]["text"],
              Sampled("ab", {.tokens = 5, .temperature = 1, .seed = 3}));
  }

  const std::unique_ptr<Gpt> model_;
  const ServedModel served_;
  Engine engine_;
  std::atomic<bool> stop_{false};
  std::unique_ptr<HttpServer> server_;
  std::thread runs_;
};

// A request that takes as long as the server lives.
const Json kEndless = {
    {"prompt", "a"}, {"max_tokens", 1 << 24}, {"stream", true}, {"ignore_eos", true}};

TEST_F(ApiTest, CompletionsAreTextsOfSampleGpt) {
  const Json request = {{"prompt", {"ab", "c"}},
                        {"max_tokens", 60},
                        {"temperature", 0.8},
                        {"seed", 5},
                        {"n", 2},
                        {"top_p", 0.9},
                        {"top_k", 50},
                        {"repetition_penalty", 1.1}};
  const Json answer = Ask("/v1/completions", request).Parsed();
  EXPECT_EQ(answer["object"], "text_completion");
  EXPECT_EQ(answer["model"], "tiny");
  ASSERT_EQ(answer["choices"].size(), 4u);
  const GenerateOptions options{.tokens = 60,
                                .temperature = 0.8,
                                .top_k = 50,
                                .top_p = 0.9,
                                .repetition_penalty = 1.1,
                                .seed = 5};
  for (int64_t i = 0; i < 4; ++i) {
    const Json& choice = answer["choices"][static_cast<size_t>(i)];
    EXPECT_EQ(choice["index"], i);
    EXPECT_EQ(choice["text"], Sampled(i < 2 ? "ab" : "c", options, i % 2));
    EXPECT_TRUE(choice["logprobs"].is_null());
  }
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 3);
}

TEST_F(ApiTest, AStreamIsTheSameInPieces) {
  for (const bool chat : {false, true}) {
    Json request = {{"max_tokens", 40}, {"seed", 8}, {"n", 3}};
    if (chat) {
      request["messages"] = Json::array({{{"role", "user"}, {"content", "é"}}});
    } else {
      request["prompt"] = "é";
    }
    const std::string path = chat ? "/v1/chat/completions" : "/v1/completions";
    const Json whole = Ask(path, request).Parsed();
    request["stream"] = true;
    request["stream_options"]["include_usage"] = true;
    const Response response = Ask(path, request);
    EXPECT_THAT(response.head, HasSubstr("Content-Type: text/event-stream"));
    const std::vector<std::string> events = Events(response.body);
    ASSERT_GT(events.size(), 3u);
    EXPECT_EQ(events.back(), "[DONE]");
    std::vector<std::string> texts(3), reasons(3);
    for (size_t i = 0; i + 2 < events.size(); ++i) {
      const Json event = Json::parse(events[i]);
      EXPECT_EQ(event["object"], chat ? "chat.completion.chunk" : "text_completion");
      for (const Json& choice : event["choices"]) {
        const std::string text = chat ? choice["delta"]["content"] : choice["text"];
        EXPECT_EQ(data::ValidUtf8Prefix(text), text.size());
        texts[choice["index"]] += text;
        if (!choice["finish_reason"].is_null()) reasons[choice["index"]] = choice["finish_reason"];
      }
    }
    EXPECT_EQ(Json::parse(events[events.size() - 2])["usage"], whole["usage"]);
    for (size_t i = 0; i < 3; ++i) {
      const Json& choice = whole["choices"][i];
      EXPECT_EQ(texts[i], chat ? choice["message"]["content"] : choice["text"]);
      EXPECT_EQ(reasons[i], choice["finish_reason"]);
    }
  }
}

TEST_F(ApiTest, StopTextsEnd) {
  GenerateOptions options{.tokens = 60, .temperature = 1, .seed = 4};
  // Three characters of some text, none of which stands for a byte that is no character.
  std::string stop = "\uFFFD";
  while (stop.find("\uFFFD") != std::string::npos) {
    ++options.seed;
    const std::string all = Sampled("q", options);
    if (data::CountUtf8(all) < 30) continue;
    const size_t begin = data::Utf8Offset(all, 15);
    stop = all.substr(begin, data::Utf8Offset(all, 18) - begin);
  }
  const Json request = {
      {"prompt", "q"}, {"max_tokens", 60}, {"seed", options.seed}, {"stop", {"not there", stop}}};
  const Json choice = Ask("/v1/completions", request).Parsed()["choices"][0];
  EXPECT_EQ(choice["text"], Sampled("q", options, 0, {stop}));
  EXPECT_EQ(choice["finish_reason"], "stop");
}

// As lm_eval asks.
TEST_F(ApiTest, PromptsAreScored) {
  const Json request = {{"prompt", {{70, 71, 72, 73}, {80, 81}}},
                        {"max_tokens", 1},
                        {"logprobs", 1},
                        {"echo", true},
                        {"temperature", 0},
                        {"seed", 1234},
                        {"model", "tiny"}};
  const Json answer = Ask("/v1/completions", request).Parsed();
  ASSERT_EQ(answer["choices"].size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    const Json& of = answer["choices"][i]["logprobs"];
    const size_t n = request["prompt"][i].size() + 1;
    for (const char* list : {"tokens", "token_logprobs", "top_logprobs", "text_offset"}) {
      EXPECT_EQ(of[list].size(), n) << list;
    }
    EXPECT_TRUE(of["token_logprobs"][0].is_null());
    for (size_t t = 1; t < n; ++t) {
      double best = -1e9;
      for (const auto& [name, value] : of["top_logprobs"][t].items()) {
        best = std::max(best, value.get<double>());
      }
      EXPECT_GE(best, of["token_logprobs"][t].get<double>());
    }
  }
}

TEST_F(ApiTest, SixteenAtOnceGetWhatEachGetsAlone) {
  std::vector<std::thread> clients;
  std::atomic<int> wrong{0};
  const int rounds = test::kSanitized ? 1 : 4;
  for (int c = 0; c < 16; ++c) {
    clients.emplace_back([&, c] {
      for (int round = 0; round < rounds; ++round) {
        const int seed = 100 * c + round;
        const std::string prompt(static_cast<size_t>(1 + c), static_cast<char>('a' + c));
        const Json answer =
            Ask("/v1/completions", {{"prompt", prompt}, {"max_tokens", 30}, {"seed", seed}})
                .Parsed();
        const std::string want =
            Sampled(prompt, {.tokens = 30, .temperature = 1, .seed = static_cast<uint64_t>(seed)});
        if (answer["choices"][0]["text"] != want) ++wrong;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(ApiTest, TellsWhatThereIs) {
  const Json models = Get("/v1/models").Parsed();
  EXPECT_EQ(models["data"][0]["id"], "tiny");
  EXPECT_EQ(models["data"][0]["max_model_len"], 48);
  EXPECT_EQ(models["data"][0]["chat"], true);
  EXPECT_EQ(Get("/health").status, 200);
  const Response page = Get("/");
  EXPECT_THAT(page.head, HasSubstr("text/html"));
  EXPECT_THAT(page.body, HasSubstr("not for production"));
  EXPECT_EQ(Get("/v2/models").status, 404);
  EXPECT_EQ(Get("/v1/completions").status, 405);
  EXPECT_EQ(Ask("/v1/models", {}).status, 405);
  const Response bad = Ask("/v1/completions", {{"prompt", "a"}, {"n", -1}});
  EXPECT_EQ(bad.status, 400);
  EXPECT_EQ(bad.Parsed()["error"]["type"], "invalid_request_error");
  EXPECT_EQ(bad.Parsed()["error"]["param"], "n");
}

TEST_F(ApiTest, AClientThatLeavesEndsItsText) {
  const auto begun = std::chrono::steady_clock::now();
  for (int i = 0; i < 20; ++i) {  // more than fit at once, each of which would take hours
    Json request = kEndless;
    request["stream"] = i % 2 == 0;
    if (i % 4 == 0) request["n"] = 3;
    Client client(server_->port());
    client.Send(Post("/v1/completions", request.dump()));
    if (i % 2 == 0) {
      EXPECT_THAT(client.Receive(100), StartsWith("HTTP/1.1 200"));
    }
  }
  ExpectHealthy();
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(50));
}

TEST_F(ApiTest, GarbageHarmsNobody) {
  Client streaming(server_->port());
  streaming.Send(Post("/v1/completions", kEndless.dump()));
  std::mt19937 random(9);
  const std::string good = Post("/v1/completions", R"({"prompt": "a", "max_tokens": 2})");
  for (int i = 0; i < (test::kSanitized ? 40 : 200); ++i) {
    std::string bytes = good;
    if (i % 3 == 0) {
      bytes.resize(random() % 200);
      for (char& c : bytes) c = static_cast<char>(random());
    } else if (i % 3 == 1) {
      for (int k = 0; k < 3; ++k) bytes[random() % bytes.size()] = static_cast<char>(random());
    } else {
      bytes.resize(random() % bytes.size());
    }
    Client(server_->port()).Send(bytes);
  }
  for (const char* head : {"\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n",
                           "POST /v1/completions HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
                           "POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999999999999999"
                           "\r\n\r\n",
                           "POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz"
                           "\r\n"}) {
    Client(server_->port()).Send(head);
  }
  ExpectHealthy();
  EXPECT_THAT(streaming.Receive(200), StartsWith("HTTP/1.1 200"));
}

TEST_F(ApiTest, WhatIsTooLargeIsRefused) {
  EXPECT_EQ(Ask("/v1/completions", {{"prompt", std::string(99'000, 'a')}}).status, 400);
  const Response response = Ask("/v1/completions", {{"prompt", std::string(101'000, 'a')}});
  EXPECT_EQ(response.status, 413);
  EXPECT_THAT(response.Parsed()["error"]["message"], HasSubstr("more than 100000 bytes"));
  Client(server_->port()).Send("GET /" + std::string(1 << 20, 'a') + " HTTP/1.1\r\n\r\n");
  ExpectHealthy();
}

TEST_F(ApiTest, TheEndEndsEveryAnswer) {
  Client stream(server_->port()), whole(server_->port()), idle(server_->port());
  stream.Send(Post("/v1/completions", kEndless.dump()));
  Json request = kEndless;
  request["stream"] = false;
  whole.Send(Post("/v1/completions", request.dump()));
  const std::string begin = stream.Receive(400);
  Stop();
  const std::string all = begin + stream.Receive();
  EXPECT_EQ(all.find("[DONE]"), std::string::npos);
  const std::string answer = whole.Receive();
  EXPECT_TRUE(answer.empty() || Parse(answer).status == 503) << answer;
}

class BusyApiTest : public ApiTest {
 protected:
  BusyApiTest() : ApiTest(/*max_queue=*/2, /*patience=*/1) {}
};

TEST_F(BusyApiTest, AFullQueueSaysSo) {
  std::vector<std::unique_ptr<Client>> clients;
  Json request = kEndless;
  for (int i = 0; i < 16; ++i) {
    clients.push_back(std::make_unique<Client>(server_->port()));
    clients.back()->Send(Post("/v1/completions", request.dump()));
    clients.back()->Receive(300);  // it is under way
  }
  request["n"] = 3;
  const Response response = Ask("/v1/completions", request);
  EXPECT_EQ(response.status, 429);
  EXPECT_EQ(response.Parsed()["error"]["code"], "rate_limit_exceeded");
  clients.clear();
  ExpectHealthy();
}

TEST_F(BusyApiTest, AnAnswerMayTakeLongerThanThePatience) {
  for (const bool stream : {false, true}) {
    Json request = {{"prompt", "a"},
                    {"max_tokens", test::kSanitized ? 2000 : 8000},
                    {"ignore_eos", true},
                    {"stream", stream}};
    if (stream) request["stop"] = std::string(1000, 'a');  // held back, so rarely something to send
    const Response response = Ask("/v1/completions", request);
    EXPECT_EQ(response.status, 200);
    EXPECT_THAT(response.body, HasSubstr("\"finish_reason\":\"length\""));
  }
}

// Clients that stop halfway: in a request, and in reading an answer.
TEST_F(BusyApiTest, ClientsThatStallAreLeft) {
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 40; ++i) {
    clients.push_back(std::make_unique<Client>(server_->port()));
    clients.back()->Send("POST /v1/completions HTTP/1.1\r\nContent-Le");
  }
  Client reads_nothing(server_->port());
  Json request = kEndless;
  request["logprobs"] = 20;  // much to write
  reads_nothing.Send(Post("/v1/completions", request.dump()));
  ExpectHealthy();
  const auto begun = std::chrono::steady_clock::now();
  for (const auto& client : clients) client->Receive();  // until the server closes
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(20));
  ExpectHealthy();
}

TEST(HttpServerTest, SaysWhereItCannotListen) {
  const auto message = [](const ServerOptions& options) -> std::string {
    try {
      const HttpServer server(options, [](const ServerRequest&) { return ServerResponse(); });
    } catch (const InputError& e) {
      return e.what();
    }
    return "no error";
  };
  const HttpServer first({}, [](const ServerRequest&) { return ServerResponse(); });
  EXPECT_THAT(message({.port = first.port()}), HasSubstr("choose another --port"));
  EXPECT_THAT(message({.host = "203.0.113.9"}), HasSubstr("--host=203.0.113.9"));
  EXPECT_THAT(message({.host = "no such host"}), HasSubstr("give an address of this machine"));
}

}  // namespace
}  // namespace lockstep::models
