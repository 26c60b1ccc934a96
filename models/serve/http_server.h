// A small HTTP server, by libmicrohttpd.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace lockstep::models {

struct ServerRequest {
  std::string method, path, body;
  // Whether the client has closed the connection, so that nobody waits for the response.
  std::function<bool()> client_left;
};

// A body that comes bit by bit. It is destroyed once the client has it all, or has left.
class BodyStream {
 public:
  virtual ~BodyStream() = default;
  // The next part. Waits for it a tenth of a second at most, and is then empty; none: that was all.
  virtual std::optional<std::string> Next() = 0;
};

struct ServerResponse {
  int status = 200;
  std::string type = "application/json";
  std::string body = {};
  std::unique_ptr<BodyStream> stream = nullptr;  // in place of body
};

struct ServerOptions {
  std::string host = "127.0.0.1";        // an address of this machine, or a name of one
  int64_t port = 0;                      // 0: a free one
  int64_t max_body = int64_t{16} << 20;  // bytes of a request; a longer one gets status 413
  int64_t max_connections = 256;         // further ones are closed at once
  int64_t patience = 30;  // seconds until a client that neither sends nor reads is left
};

// Answers each request by a handler, which runs in the thread of the request's connection and may
// block. A client that stalls occupies its own connection only, one that leaves is noticed by
// ServerRequest::client_left, and in a stream.
class HttpServer {
 public:
  using Handler = std::function<ServerResponse(const ServerRequest& request)>;

  // Serves from now on. InputError if it cannot listen there.
  HttpServer(const ServerOptions& options, Handler handler);
  // Waits for handlers, which should end soon; streams and connections are cut off.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int64_t port() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::models
