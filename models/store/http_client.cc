#include "models/store/http_client.h"

// Without it, curl_easy_setopt is a macro.
#define CURL_DISABLE_TYPECHECK
#include <curl/curl.h>

#include <algorithm>
#include <cctype>
#include <memory>
#include <string_view>

#include "core/error.h"
#include "core/system/shared_library.h"

#undef curl_easy_setopt
#undef curl_easy_getinfo

namespace lockstep::models {
namespace {

// More than any part or list: a server that disregards ranges would send an object of any size.
constexpr size_t kMaxBody = size_t{128} << 20;
constexpr long kStalledSeconds = 30;

struct CurlApi {
  decltype(&curl_global_init) GlobalInit;
  decltype(&curl_easy_init) Init;
  decltype(&curl_easy_reset) Reset;
  decltype(&curl_easy_setopt) SetOpt;
  decltype(&curl_easy_perform) Perform;
  decltype(&curl_easy_getinfo) GetInfo;
  decltype(&curl_easy_strerror) StrError;
  decltype(&curl_easy_cleanup) Cleanup;
  decltype(&curl_slist_append) Append;
  decltype(&curl_slist_free_all) FreeAll;
};

CurlApi Load() {
  const SharedLibrary library({.name = "libcurl, which s3:// needs,",
                               .files = {"libcurl.so.4", "libcurl-gnutls.so.4"},
                               .install = "libcurl4 7.75 or newer"});
  CurlApi api;
  library.Find("curl_global_init", &api.GlobalInit);
  library.Find("curl_easy_init", &api.Init);
  library.Find("curl_easy_reset", &api.Reset);
  library.Find("curl_easy_setopt", &api.SetOpt);
  library.Find("curl_easy_perform", &api.Perform);
  library.Find("curl_easy_getinfo", &api.GetInfo);
  library.Find("curl_easy_strerror", &api.StrError);
  library.Find("curl_easy_cleanup", &api.Cleanup);
  library.Find("curl_slist_append", &api.Append);
  library.Find("curl_slist_free_all", &api.FreeAll);
  if (api.GlobalInit(CURL_GLOBAL_DEFAULT) != CURLE_OK) throw Error("libcurl cannot be initialised");
  return api;
}

const CurlApi& Curl() {
  static const CurlApi api = Load();
  return api;
}

template <class Value>
void Set(void* handle, CURLoption option, Value value) {
  const CURLcode code = Curl().SetOpt(handle, option, value);
  if (code != CURLE_OK) {
    throw Error(StrCat("libcurl is too old for s3:// (", Curl().StrError(code),
                       "): install libcurl4 7.75 or newer"));
  }
}

// "https://host:port" of a URL: a query may have secrets in it, and so may "user:password@".
std::string ServerOf(const std::string& url) {
  const size_t host = url.find("://") + 3;
  const std::string authority = url.substr(host, url.find('/', host) - host);
  return url.substr(0, host) + authority.substr(authority.rfind('@') + 1);
}

}  // namespace

// What callbacks know of a request.
struct HttpClient::Transfer {
  const HttpOptions& options;
  HttpAnswer answer{};
  int64_t counted = 0;
  bool too_much = false;

  static size_t Body(char* data, size_t, size_t n, void* self) {
    std::string& body = static_cast<Transfer*>(self)->answer.body;
    if (body.size() + n > kMaxBody) {
      static_cast<Transfer*>(self)->too_much = true;
      return 0;
    }
    body.append(data, n);
    return n;
  }

  static size_t Header(char* data, size_t, size_t n, void* self) {
    auto& headers = static_cast<Transfer*>(self)->answer.headers;
    const std::string_view line(data, n);
    if (line.starts_with("HTTP/")) headers.clear();  // those of "100 Continue"
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) return n;
    std::string name(line.substr(0, colon));
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
    std::string_view value = line.substr(colon + 1);
    const size_t first = value.find_first_not_of(" \t"), last = value.find_last_not_of(" \t\r\n");
    value = first > last || first == value.npos ? "" : value.substr(first, last - first + 1);
    headers[name] = value;
    return n;
  }

  static int Progress(void* self, curl_off_t, curl_off_t down, curl_off_t, curl_off_t up) {
    Transfer& transfer = *static_cast<Transfer*>(self);
    const int64_t more = down + up - transfer.counted;
    if (more > 0 && transfer.options.moved != nullptr) *transfer.options.moved += more;
    transfer.counted = std::max(transfer.counted, static_cast<int64_t>(down + up));
    return transfer.options.stop.stop_requested() ? 1 : 0;
  }
};

HttpClient::HttpClient(HttpOptions options) : handle_(Curl().Init()), options_(std::move(options)) {
  if (handle_ == nullptr) throw Error("libcurl has no memory for a connection");
}

HttpClient::~HttpClient() { Curl().Cleanup(handle_); }

HttpAnswer HttpClient::Send(const HttpRequest& request) {
  const CurlApi& curl = Curl();
  Transfer transfer{.options = options_};
  curl.Reset(handle_);  // keeps the connection
  Set(handle_, CURLOPT_URL, request.url.c_str());
  Set(handle_, CURLOPT_PATH_AS_IS, 1L);  // what is signed is what is sent
  Set(handle_, CURLOPT_NOSIGNAL, 1L);
  Set(handle_, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(request.connect_timeout.count()));
  Set(handle_, CURLOPT_LOW_SPEED_LIMIT, 1L);
  Set(handle_, CURLOPT_LOW_SPEED_TIME, kStalledSeconds);
  Set(handle_, CURLOPT_WRITEFUNCTION, Transfer::Body);
  Set(handle_, CURLOPT_WRITEDATA, &transfer);
  Set(handle_, CURLOPT_HEADERFUNCTION, Transfer::Header);
  Set(handle_, CURLOPT_HEADERDATA, &transfer);
  Set(handle_, CURLOPT_NOPROGRESS, 0L);
  Set(handle_, CURLOPT_XFERINFOFUNCTION, Transfer::Progress);
  Set(handle_, CURLOPT_XFERINFODATA, &transfer);
  if (request.direct) Set(handle_, CURLOPT_NOPROXY, "*");
  if (!options_.certificates.empty()) {
    Set(handle_, CURLOPT_CAINFO, options_.certificates.c_str());
  }
  if (request.method == "PUT" || request.method == "POST") {
    Set(handle_, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
    // libcurl neither copies nor changes it.
    Set(handle_, CURLOPT_POSTFIELDS,
        request.body.empty() ? "" : reinterpret_cast<const char*>(request.body.data()));
  }
  Set(handle_, CURLOPT_CUSTOMREQUEST, request.method.c_str());
  if (request.signer) {
    Set(handle_, CURLOPT_AWS_SIGV4, StrCat("aws:amz:", request.signer->region, ":s3").c_str());
    Set(handle_, CURLOPT_USERNAME, request.signer->key.c_str());
    Set(handle_, CURLOPT_PASSWORD, request.signer->secret.c_str());
  }
  curl_slist* headers = nullptr;
  for (const std::string& header : request.headers) {
    headers = curl.Append(headers, header.c_str());
  }
  const std::unique_ptr<curl_slist, void (*)(curl_slist*)> owned(headers, curl.FreeAll);
  Set(handle_, CURLOPT_HTTPHEADER, headers);
  const CURLcode code = curl.Perform(handle_);
  if (code != CURLE_OK) {
    const std::string why = options_.stop.stop_requested() ? "it was stopped"
                            : transfer.too_much            ? "it sends more than was asked for"
                                                           : curl.StrError(code);
    throw IoError(StrCat("no answer from ", ServerOf(request.url), ": ", why));
  }
  long status = 0;
  curl.GetInfo(handle_, CURLINFO_RESPONSE_CODE, &status);
  transfer.answer.status = static_cast<int>(status);
  return std::move(transfer.answer);
}

}  // namespace lockstep::models
