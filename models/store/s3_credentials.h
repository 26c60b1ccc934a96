// Who a program is to S3: found where AWS's own programs look.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "core/system/environment.h"
#include "models/store/http_client.h"

namespace lockstep::models {

struct S3Credentials {
  std::string key, secret, token;  // the token may be empty
  std::string source;              // for messages: "the environment"
  std::optional<std::chrono::system_clock::time_point> expires{};
};

// The first of these that there is:
//   1. AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN
//   2. the keys of AWS_PROFILE ("default") in ~/.aws/credentials and ~/.aws/config
//   3. a web identity: AWS_WEB_IDENTITY_TOKEN_FILE and AWS_ROLE_ARN (Kubernetes on AWS)
//   4. a container's: AWS_CONTAINER_CREDENTIALS_FULL_URI or _RELATIVE_URI
//   5. the role of the machine, from its metadata service (IMDSv2)
// Thread-safe.
class S3CredentialChain {
 public:
  // Throws IoError where nobody answers.
  using Ask = std::function<HttpAnswer(const HttpRequest&)>;

  S3CredentialChain(Environment environment, Ask ask);

  // Asks again five minutes before they expire. InputError that says what is missing where.
  S3Credentials Get();
  // They have been refused: Get looks for them again. Returns whether it may find others, which is
  // so once for each that were found.
  bool Renew(const S3Credentials& refused);

  // AWS_REGION, AWS_DEFAULT_REGION or the profile's; else us-east-1.
  std::string region() const;
  // AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL or the profile's, without a slash at its end; else AWS's.
  // InputError if it is not that of a server.
  std::string endpoint() const;

 private:
  using Section = std::map<std::string, std::string>;

  std::optional<S3Credentials> FromEnvironment() const;
  std::optional<S3Credentials> FromProfile() const;
  std::optional<S3Credentials> FromWebIdentity() const;
  std::optional<S3Credentials> FromContainer() const;
  std::optional<S3Credentials> FromMachine() const;
  Section Profile() const;
  std::string ProfileName() const;
  std::string Setting(std::initializer_list<const char*> variables, const char* of_profile) const;
  HttpAnswer Answer(const HttpRequest& request, const std::string& from) const;

  const Environment environment_;
  const Ask ask_;
  std::mutex mutex_;
  std::optional<S3Credentials> current_;
};

// The settings of a section of an INI file, as AWS's are: "[profile name]", "key = value".
std::map<std::string, std::string> IniSection(std::string_view text, std::string_view section);

}  // namespace lockstep::models
