#include "models/store/s3_error.h"

#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "core/error.h"
#include "models/store/s3_text.h"

namespace lockstep::models {
namespace {

bool IsOneOf(std::string_view code, std::initializer_list<std::string_view> codes) {
  return std::ranges::find(codes, code) != codes.end();
}

std::string Header(const HttpAnswer& answer, const char* name) {
  const auto it = answer.headers.find(name);
  return it == answer.headers.end() ? "" : it->second;
}

// How far this machine's clock is from the server's: " by 16 minutes"; "" if that does not say.
std::string ClockDifference(const HttpAnswer& answer) {
  tm time = {};
  const std::string date = Header(answer, "date");
  if (strptime(date.c_str(), "%a, %d %b %Y %H:%M:%S", &time) == nullptr) return "";
  const int64_t seconds = ::time(nullptr) - timegm(&time);
  return StrCat(" by ", std::abs(seconds) / 60, " minutes (it is ",
                seconds < 0 ? "behind" : "ahead", ")");
}

// Where the bucket is, as far as the answer says.
std::string RegionOf(const HttpAnswer& answer) {
  const std::string named = ElementOf(answer.body, "Region");
  return named.empty() ? Header(answer, "x-amz-bucket-region") : named;
}

}  // namespace

std::string S3Refusal::code() const {
  const std::string code = ElementOf(answer.body, "Code");
  const bool plain = std::ranges::all_of(code, [](unsigned char c) { return std::isalnum(c); });
  return plain ? code.substr(0, 64) : "";
}

bool S3Refusal::passes() const {
  return answer.status >= 500 || answer.status == 429 || answer.status == 408 ||
         IsOneOf(code(), {"SlowDown", "InternalError", "RequestTimeout", "ServiceUnavailable",
                          "Throttling", "OperationAborted"});
}

bool S3Refusal::expired() const {
  return IsOneOf(code(), {"ExpiredToken", "InvalidToken", "TokenRefreshRequired"});
}

void S3Refusal::Throw() const {
  const std::string what = code();
  const std::string elsewhere = RegionOf(answer);
  std::string text;
  if (passes()) {
    throw IoError(StrCat(place, ": ", endpoint, " answers ", answer.status, what.empty() ? "" : " ",
                         what, " again and again"));
  }
  if (IsOneOf(what, {"InvalidAccessKeyId", "InvalidClientTokenId"})) {
    text =
        StrCat("the access key is unknown there: check the credentials, which are from ", source);
  } else if (what == "SignatureDoesNotMatch") {
    text = StrCat("the secret key does not belong to the access key: check the credentials, which ",
                  "are from ", source);
  } else if (expired()) {
    text =
        StrCat("the session token has expired or is invalid: get new credentials; these are from ",
               source);
  } else if (what == "RequestTimeTooSkewed") {
    text = StrCat("this machine's clock is off", ClockDifference(answer),
                  ": set it, as with timedatectl set-ntp true");
  } else if (what == "NoSuchBucket") {
    text =
        StrCat("there is no bucket ", bucket, " at ", endpoint,
               ": create it, or correct the name; another server is named with AWS_ENDPOINT_URL");
  } else if (answer.status == 301 || answer.status == 307 || !elsewhere.empty() ||
             IsOneOf(what, {"PermanentRedirect", "AuthorizationHeaderMalformed",
                            "IllegalLocationConstraintException"})) {
    text = StrCat("the bucket is not in the region ", region,
                  ": set AWS_REGION=", elsewhere.empty() ? "the bucket's" : elsewhere);
  } else if (answer.status == 401 || answer.status == 403) {
    text = StrCat("no permission: the credentials, which are from ", source, ", need ", action,
                  " on ", place, " (s3:ListBucket on the bucket, and s3:GetObject, s3:PutObject ",
                  "and s3:DeleteObject on what is in it)");
  } else {
    text = StrCat("this is not understood there, by ", action, ": is ", endpoint,
                  " a server that speaks S3?");
  }
  throw InputError(StrCat(place, ": ", text, " (", endpoint, " answers ", answer.status,
                          what.empty() ? "" : " ", what, ")"));
}

}  // namespace lockstep::models
