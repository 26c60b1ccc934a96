// A bucket of AWS, or of any server that speaks S3 (MinIO, Ceph, R2).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "models/store/http_client.h"
#include "models/store/object_store.h"
#include "models/store/s3_credentials.h"

namespace lockstep::models {

// "s3://bucket/some/prefix"
struct S3Place {
  std::string bucket, prefix;  // the prefix has no slash at either end, and may be empty
};
// InputError, which does not repeat the text: it may have a password in it.
S3Place ParseS3Place(const std::string& url);

// Requests have the path style (SERVER/bucket/key), and are signed by libcurl. What may pass is
// tried again: a connection that is cut, an answer that is truncated, 5xx, SlowDown. Large objects
// go in parts, of which several are under way.
class S3Store : public ObjectStore {
 public:
  S3Store(const std::string& url, const StoreOptions& options);

  void Put(const std::string& name, std::span<const std::byte> bytes) override;
  bool Get(const std::string& name, const Sink& sink) override;
  std::vector<Object> List(const std::string& prefix) override;
  void Remove(const std::string& name) override;
  void RemoveUnfinished() override;

 private:
  // How many parts are under way at the same time.
  static constexpr int kTogether = 4;

  struct Request {
    const char* method = "GET";
    std::string key;                             // empty: the bucket
    const char* action = "";                     // the permission that it needs
    std::map<std::string, std::string> query{};  // sorted, as libcurl must sign it
    std::vector<std::string> headers{};
    std::span<const std::byte> body{};
    bool may_miss = false;  // whether an answer of 404 is one: there is no such object
  };

  std::string KeyOf(const std::string& name) const;
  // Returns answers of 2xx, of 416 (there is no such range), and of 404 if the request says so.
  HttpAnswer Send(const Request& request, int connection = 0);
  HttpAnswer SendOnce(const Request& request, const std::string& hash,
                      const S3Credentials& credentials, int connection);
  void Pause(int attempt) const;
  void PutParts(const std::string& key, std::span<const std::byte> bytes);
  HttpAnswer GetRange(const std::string& key, int64_t begin, int64_t end, int connection = 0);
  static void Together(int64_t n, const std::function<void(int64_t i)>& f);

  const StoreOptions options_;
  const S3Place where_;
  HttpClient asks_;  // for credentials
  S3CredentialChain chain_;
  const std::string region_, endpoint_;
  std::vector<std::unique_ptr<HttpClient>> connections_;
};

}  // namespace lockstep::models
