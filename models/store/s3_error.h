// What S3 refuses, and what the user can do.
#pragma once

#include <string>

#include "models/store/http_client.h"

namespace lockstep::models {

// A request that was answered with an error.
struct S3Refusal {
  std::string place;     // "s3://bucket/prefix"
  std::string bucket;    //
  std::string endpoint;  // the server
  std::string region;    // that was signed for
  std::string source;    // of the credentials
  std::string action;    // the permission that it needs: "s3:PutObject"
  HttpAnswer answer;

  // Of the answer: "NoSuchBucket"; "" if it does not say.
  std::string code() const;
  // Whether the same request may succeed later.
  bool passes() const;
  // Whether other credentials might be accepted: these are no longer.
  bool expired() const;
  // Throws InputError, or IoError for what passes. The text names no credential, and repeats
  // nothing of the answer but the code, in which a server may name one.
  [[noreturn]] void Throw() const;
};

}  // namespace lockstep::models
