// HTTP by libcurl, which is loaded on first use: programs start where it is not installed.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

namespace lockstep::models {

struct HttpRequest {
  // AWS's signature, version 4, is libcurl's.
  struct Signer {
    std::string region, key, secret;
  };

  std::string method = "GET", url;
  std::vector<std::string> headers{};  // "name: value"
  std::span<const std::byte> body{};   // of PUT and POST; must outlive the call
  std::optional<Signer> signer{};      // of S3; none: the request is not signed
  bool direct = false;                 // past any proxy
  std::chrono::milliseconds connect_timeout{10000};
};

struct HttpAnswer {
  int status = 0;
  std::map<std::string, std::string> headers{};  // by their names in small letters
  std::string body{};
};

struct HttpOptions {
  std::stop_token stop{};                 // ends what is under way
  std::atomic<int64_t>* moved = nullptr;  // counts bytes of bodies, as they go; may be null
  std::string certificates{};             // of authorities: a file; empty: the system's
};

// One connection, which is kept for the next request. For one thread at a time.
class HttpClient {
 public:
  // Throws Error, saying what to install, if there is no libcurl.
  explicit HttpClient(HttpOptions options = {});
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // The whole answer, whatever its status; redirections are not followed. Throws IoError with the
  // server's name and the reason if there is none: no connection, one that was cut, or on which
  // nothing has moved for half a minute.
  HttpAnswer Send(const HttpRequest& request);

 private:
  struct Transfer;
  void* const handle_;
  const HttpOptions options_;
};

}  // namespace lockstep::models
