#include "models/store/s3_credentials.h"

#include <time.h>

#include <sstream>
#include <utility>

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/json.h"
#include "models/store/s3_text.h"

namespace lockstep::models {
namespace {

using Clock = std::chrono::system_clock;

constexpr std::chrono::minutes kBeforeExpiry(5);
// Where there is such a service, it answers at once.
constexpr std::chrono::milliseconds kMachineTimeout(1000);

std::string Trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == text.npos) return "";
  return std::string(text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1));
}

// "2026-11-29T20:00:00Z"
std::optional<Clock::time_point> ParseTime(const std::string& text) {
  tm time = {};
  if (strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &time) == nullptr) return std::nullopt;
  return Clock::from_time_t(timegm(&time));
}

// What containers and machines say.
S3Credentials ParseAnswer(const std::string& body, const std::string& source) {
  const Json json = TryParseJson(body);
  const auto text = [&](const char* name) -> std::string {
    return json.is_object() && json.contains(name) && json[name].is_string() ? json[name] : "";
  };
  return {.key = text("AccessKeyId"),
          .secret = text("SecretAccessKey"),
          .token = text("Token"),
          .source = source,
          .expires = ParseTime(text("Expiration"))};
}

}  // namespace

std::map<std::string, std::string> IniSection(std::string_view text, std::string_view section) {
  std::map<std::string, std::string> settings;
  std::istringstream lines{std::string(text)};
  bool inside = false;
  for (std::string line; std::getline(lines, line);) {
    const bool indented = line.starts_with(' ') || line.starts_with('\t');
    line = Trimmed(line);
    if (line.empty() || line[0] == '#' || line[0] == ';') continue;
    if (line[0] == '[') {
      inside = Trimmed(line.substr(1, line.find(']') - 1)) == section;
    } else if (const size_t equals = line.find('='); inside && !indented && equals != line.npos) {
      settings[Trimmed(line.substr(0, equals))] = Trimmed(line.substr(equals + 1));
    }
  }
  return settings;
}

S3CredentialChain::S3CredentialChain(Environment environment, Ask ask)
    : environment_(std::move(environment)), ask_(std::move(ask)) {}

S3Credentials S3CredentialChain::Get() {
  const std::lock_guard lock(mutex_);
  if (current_ && (!current_->expires || Clock::now() < *current_->expires - kBeforeExpiry)) {
    return *current_;
  }
  for (const auto find : {&S3CredentialChain::FromEnvironment, &S3CredentialChain::FromProfile,
                          &S3CredentialChain::FromWebIdentity, &S3CredentialChain::FromContainer,
                          &S3CredentialChain::FromMachine}) {
    current_ = (this->*find)();
    if (!current_) continue;
    if (!current_->key.empty() && !current_->secret.empty()) return *current_;
    throw InputError(StrCat(std::exchange(current_, {})->source,
                            " gives no credentials: its answer has no key and secret"));
  }
  throw InputError(
      "there are no credentials for s3://: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
      "AWS_PROFILE to a profile of ~/.aws/credentials, or give this machine a role");
}

bool S3CredentialChain::Renew(const S3Credentials& refused) {
  {
    const std::lock_guard lock(mutex_);
    if (current_ && current_->token != refused.token) return true;  // another thread has
    current_.reset();
  }
  const S3Credentials found = Get();
  return found.key != refused.key || found.token != refused.token;
}

std::string S3CredentialChain::ProfileName() const {
  return Lookup(environment_, "AWS_PROFILE").value_or("default");
}

// Of both files; the keys of ~/.aws/credentials win.
S3CredentialChain::Section S3CredentialChain::Profile() const {
  const std::string folder = JoinPath(Lookup(environment_, "HOME").value_or(""), ".aws");
  const auto read = [&](const char* variable, const char* name, const std::string& section) {
    const std::string path = Lookup(environment_, variable).value_or(JoinPath(folder, name));
    return PathExists(path) ? IniSection(ReadFile(path), section) : Section();
  };
  const std::string name = ProfileName();
  Section all = read("AWS_SHARED_CREDENTIALS_FILE", "credentials", name);
  all.merge(read("AWS_CONFIG_FILE", "config", name == "default" ? name : "profile " + name));
  return all;
}

std::string S3CredentialChain::Setting(std::initializer_list<const char*> variables,
                                       const char* of_profile) const {
  for (const char* variable : variables) {
    if (const auto value = Lookup(environment_, variable)) return *value;
  }
  return Profile()[of_profile];
}

std::string S3CredentialChain::region() const {
  const std::string region = Setting({"AWS_REGION", "AWS_DEFAULT_REGION"}, "region");
  return region.empty() ? "us-east-1" : region;
}

std::string S3CredentialChain::endpoint() const {
  std::string url = Setting({"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"}, "endpoint_url");
  if (url.empty()) {
    const std::string at = region();
    return StrCat("https://s3.", at, ".amazonaws.com", at.starts_with("cn-") ? ".cn" : "");
  }
  while (url.ends_with('/')) url.pop_back();
  // What a URL says before "@" would be a password.
  if (!(url.starts_with("http://") || url.starts_with("https://")) ||
      url.find_first_of("@?#") != url.npos) {
    throw InputError(
        "AWS_ENDPOINT_URL must be the URL of a server, as in https://minio.example.org:9000");
  }
  return url;
}

HttpAnswer S3CredentialChain::Answer(const HttpRequest& request, const std::string& from) const {
  HttpAnswer answer = ask_(request);
  if (answer.status == 200) return answer;
  const std::string code = ElementOf(answer.body, "Code");
  throw InputError(StrCat(from, " gives no credentials: it answers ", answer.status,
                          code.empty() ? "" : " ", code));
}

std::optional<S3Credentials> S3CredentialChain::FromEnvironment() const {
  const auto key = Lookup(environment_, "AWS_ACCESS_KEY_ID");
  const auto secret = Lookup(environment_, "AWS_SECRET_ACCESS_KEY");
  if (!key && !secret) return std::nullopt;
  if (!key || !secret) {
    throw InputError(StrCat("AWS_", key ? "ACCESS_KEY_ID" : "SECRET_ACCESS_KEY",
                            " is set, but AWS_", key ? "SECRET_ACCESS_KEY" : "ACCESS_KEY_ID",
                            " is not: set both"));
  }
  return S3Credentials{.key = *key,
                       .secret = *secret,
                       .token = Lookup(environment_, "AWS_SESSION_TOKEN").value_or(""),
                       .source = "the environment (AWS_ACCESS_KEY_ID)"};
}

std::optional<S3Credentials> S3CredentialChain::FromProfile() const {
  Section profile = Profile();
  const std::string name = ProfileName();
  if (!profile["aws_access_key_id"].empty() && !profile["aws_secret_access_key"].empty()) {
    return S3Credentials{.key = profile["aws_access_key_id"],
                         .secret = profile["aws_secret_access_key"],
                         .token = profile["aws_session_token"],
                         .source = StrCat("the profile ", Quoted(name))};
  }
  if (!Lookup(environment_, "AWS_PROFILE")) return std::nullopt;
  throw InputError(StrCat(
      "the profile ", Quoted(name), ", which AWS_PROFILE names, has no aws_access_key_id and ",
      "aws_secret_access_key in ~/.aws/credentials or ~/.aws/config. If it is one of single ",
      "sign-on or of a role: eval \"$(aws configure export-credentials --format env ",
      "--profile NAME)\""));
}

std::optional<S3Credentials> S3CredentialChain::FromWebIdentity() const {
  const auto file = Lookup(environment_, "AWS_WEB_IDENTITY_TOKEN_FILE");
  const auto role = Lookup(environment_, "AWS_ROLE_ARN");
  if (!file || !role) return std::nullopt;
  const std::string form =
      StrCat("Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn=", PercentEncoded(*role),
             "&RoleSessionName=",
             PercentEncoded(Lookup(environment_, "AWS_ROLE_SESSION_NAME").value_or("lockstep")),
             "&WebIdentityToken=", PercentEncoded(Trimmed(ReadFile(*file))));
  const std::string url = Setting({"AWS_ENDPOINT_URL_STS", "AWS_ENDPOINT_URL"}, "endpoint_url");
  const HttpAnswer answer =
      Answer({.method = "POST",
              .url = url.empty() ? StrCat("https://sts.", region(), ".amazonaws.com/") : url,
              .headers = {"Content-Type: application/x-www-form-urlencoded"},
              .body = std::as_bytes(std::span(form))},
             "the web identity of AWS_ROLE_ARN");
  return S3Credentials{.key = ElementOf(answer.body, "AccessKeyId"),
                       .secret = ElementOf(answer.body, "SecretAccessKey"),
                       .token = ElementOf(answer.body, "SessionToken"),
                       .source = "the web identity of AWS_ROLE_ARN",
                       .expires = ParseTime(ElementOf(answer.body, "Expiration"))};
}

std::optional<S3Credentials> S3CredentialChain::FromContainer() const {
  const auto full = Lookup(environment_, "AWS_CONTAINER_CREDENTIALS_FULL_URI");
  const auto relative = Lookup(environment_, "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
  if (!full && !relative) return std::nullopt;
  auto token = Lookup(environment_, "AWS_CONTAINER_AUTHORIZATION_TOKEN");
  if (const auto file = Lookup(environment_, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")) {
    token = Trimmed(ReadFile(*file));
  }
  HttpRequest request{.url = relative ? "http://169.254.170.2" + *relative : *full, .direct = true};
  if (token) request.headers.push_back("Authorization: " + *token);
  const std::string from = "the container's service of credentials";
  return ParseAnswer(Answer(request, from).body, from);
}

std::optional<S3Credentials> S3CredentialChain::FromMachine() const {
  if (Lookup(environment_, "AWS_EC2_METADATA_DISABLED") == "true") return std::nullopt;
  const std::string service =
      Lookup(environment_, "AWS_EC2_METADATA_SERVICE_ENDPOINT").value_or("http://169.254.169.254");
  const std::string from = "the role of this machine";
  HttpRequest request{.method = "PUT",
                      .url = service + "/latest/api/token",
                      .headers = {"X-aws-ec2-metadata-token-ttl-seconds: 21600"},
                      .direct = true,
                      .connect_timeout = kMachineTimeout};
  try {
    const std::string token = Trimmed(ask_(request).body);
    request.method = "GET";
    request.url = service + "/latest/meta-data/iam/security-credentials/";
    request.headers = {"X-aws-ec2-metadata-token: " + token};
    const HttpAnswer roles = ask_(request);
    if (roles.status != 200) return std::nullopt;  // it has none
    request.url += Trimmed(roles.body.substr(0, roles.body.find('\n')));
  } catch (const IoError&) {
    return std::nullopt;  // no such service: this is not a machine of AWS
  }
  return ParseAnswer(Answer(request, from).body, from);
}

}  // namespace lockstep::models
