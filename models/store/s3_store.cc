#include "models/store/s3_store.h"

#include <algorithm>
#include <charconv>
#include <exception>
#include <random>
#include <thread>
#include <utility>

#include "core/error.h"
#include "core/io/sha256.h"
#include "models/store/s3_error.h"
#include "models/store/s3_text.h"

namespace lockstep::models {
namespace {

constexpr int64_t kMaxParts = 10000;
constexpr std::chrono::milliseconds kLongestPause(20000);

HttpOptions ToHttpOptions(const StoreOptions& options) {
  return {.stop = options.stop,
          .moved = options.moved,
          .certificates = Lookup(options.environment, "AWS_CA_BUNDLE").value_or("")};
}

std::span<const std::byte> BytesOf(const std::string& text) {
  return std::as_bytes(std::span(text));
}

// The size of an object, of the answer to a request for a range of it: "bytes 0-9/1000".
int64_t SizeOf(const HttpAnswer& answer) {
  if (answer.status != 206) return std::ssize(answer.body);  // of all of it
  const auto it = answer.headers.find("content-range");
  const std::string text = it == answer.headers.end() ? "" : it->second;
  const size_t slash = text.find('/');
  int64_t size = -1;
  if (slash != text.npos) std::from_chars(&text[slash] + 1, text.data() + text.size(), size);
  return size;
}

}  // namespace

S3Place ParseS3Place(const std::string& url) {
  constexpr std::string_view kScheme = "s3://";
  std::string rest = url.starts_with(kScheme) ? url.substr(kScheme.size()) : "";
  while (rest.ends_with('/')) rest.pop_back();
  const size_t slash = std::min(rest.find('/'), rest.size());
  S3Place place{.bucket = rest.substr(0, slash), .prefix = rest.substr(slash)};
  place.prefix.erase(0, std::min(place.prefix.find_first_not_of('/'), place.prefix.size()));
  constexpr std::string_view kOfBuckets = "abcdefghijklmnopqrstuvwxyz0123456789.-_";
  if (place.bucket.empty() || place.bucket.find_first_not_of(kOfBuckets) != std::string::npos ||
      place.prefix.find("//") != std::string::npos) {
    throw InputError(
        "a place in a bucket has the form s3://bucket/prefix, with a bucket of small letters, "
        "digits, dots and dashes; keys and servers are not part of it, but of the environment "
        "(AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL)");
  }
  return place;
}

S3Store::S3Store(const std::string& url, const StoreOptions& options)
    : ObjectStore([&] {
        const S3Place place = ParseS3Place(url);
        return StrCat("s3://", place.bucket, place.prefix.empty() ? "" : "/", place.prefix);
      }()),
      options_(options),
      where_(ParseS3Place(url)),
      asks_(ToHttpOptions(options)),
      chain_(options.environment, [this](const HttpRequest& r) { return asks_.Send(r); }),
      region_(chain_.region()),
      endpoint_(chain_.endpoint()) {
  for (int i = 0; i < kTogether; ++i) {
    connections_.push_back(std::make_unique<HttpClient>(ToHttpOptions(options)));
  }
}

std::string S3Store::KeyOf(const std::string& name) const {
  return where_.prefix.empty() ? name : StrCat(where_.prefix, "/", name);
}

// ---- Requests ----

HttpAnswer S3Store::SendOnce(const Request& request, const std::string& hash,
                             const S3Credentials& credentials, int connection) {
  std::string url = StrCat(endpoint_, "/", where_.bucket);
  if (!request.key.empty()) url += "/" + PercentEncoded(request.key, /*slash=*/true);
  char separator = '?';
  for (const auto& [name, value] : request.query) {
    url += StrCat(std::exchange(separator, '&'), PercentEncoded(name), "=", PercentEncoded(value));
  }
  std::vector<std::string> headers = request.headers;
  headers.push_back("x-amz-content-sha256: " + hash);
  if (!credentials.token.empty()) {
    headers.push_back("x-amz-security-token: " + credentials.token);
  }
  return connections_[connection]->Send(
      {.method = request.method,
       .url = url,
       .headers = headers,
       .body = request.body,
       .signer = HttpRequest::Signer{region_, credentials.key, credentials.secret}});
}

HttpAnswer S3Store::Send(const Request& request, int connection) {
  const std::string hash = Sha256Of(request.body);
  for (int attempt = 1;; ++attempt) {
    if (attempt > 1) Pause(attempt - 1);
    const S3Credentials credentials = chain_.Get();
    const bool last = attempt >= options_.attempts;
    S3Refusal refusal{.place = place(),
                      .bucket = where_.bucket,
                      .endpoint = endpoint_,
                      .region = region_,
                      .source = credentials.source,
                      .action = request.action};
    HttpAnswer& answer = refusal.answer;
    try {
      answer = SendOnce(request, hash, credentials, connection);
    } catch (const IoError& e) {
      if (!last && !options_.stop.stop_requested()) continue;
      throw IoError(
          StrCat(place(), ": ", e.what(), "; another server is named with ", "AWS_ENDPOINT_URL"));
    }
    const bool good = answer.status >= 200 && answer.status < 300;
    // A list of parts may be refused after the answer has begun.
    const bool late = good && *request.method == 'P' && refusal.code() != "";
    if (good && !late) return std::move(answer);
    if (late) answer.status = 500;
    const bool missing = answer.status == 404 && refusal.code() != "NoSuchBucket";
    if ((missing && request.may_miss) || answer.status == 416) return std::move(answer);
    const bool again = refusal.passes() || (refusal.expired() && chain_.Renew(credentials));
    if (last || !again) refusal.Throw();
  }
}

// Random, so that many that were refused together do not come again together.
void S3Store::Pause(int attempt) const {
  using std::chrono::milliseconds;
  const auto longest =
      std::min(kLongestPause, options_.backoff * (int64_t{1} << std::min(attempt - 1, 16)));
  static thread_local std::mt19937 random(std::random_device{}());
  std::uniform_int_distribution<int64_t> pause(0, longest.count());
  const auto end = std::chrono::steady_clock::now() + milliseconds(pause(random));
  while (std::chrono::steady_clock::now() < end) {
    if (options_.stop.stop_requested()) throw IoError(StrCat(place(), ": it was stopped"));
    std::this_thread::sleep_for(milliseconds(10));
  }
}

// Runs f(0) ... f(n - 1) at the same time, each on a connection of its own; throws the error of
// one that failed, once all have ended.
void S3Store::Together(int64_t n, const std::function<void(int64_t i)>& f) {
  std::vector<std::exception_ptr> errors(n);
  {
    std::vector<std::jthread> threads;
    for (int64_t i = 0; i < n; ++i) {
      threads.emplace_back([&, i] {
        try {
          f(i);
        } catch (...) {
          errors[i] = std::current_exception();
        }
      });
    }
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

// ---- Objects ----

void S3Store::Put(const std::string& name, std::span<const std::byte> bytes) {
  const std::string key = KeyOf(name);
  if (std::ssize(bytes) > options_.part_bytes) return PutParts(key, bytes);
  Send({.method = "PUT",
        .key = key,
        .action = "s3:PutObject",
        .headers = {"Content-Type: application/octet-stream"},
        .body = bytes});
}

void S3Store::PutParts(const std::string& key, std::span<const std::byte> bytes) {
  const Request write{.method = "PUT", .key = key, .action = "s3:PutObject"};
  Request begin = write;
  begin.method = "POST";
  begin.query["uploads"];
  begin.headers = {"Content-Type: application/octet-stream"};
  const std::string id = ElementOf(Send(begin).body, "UploadId");
  if (id.empty()) throw IoError(StrCat(place(), " answers nothing that begins an upload in parts"));
  try {
    const int64_t size = std::ssize(bytes);
    const int64_t part = std::max(options_.part_bytes, (size + kMaxParts - 1) / kMaxParts);
    std::vector<std::string> tags((size + part - 1) / part);
    for (int64_t first = 0; first < std::ssize(tags); first += kTogether) {
      Together(std::min<int64_t>(kTogether, std::ssize(tags) - first), [&](int64_t i) {
        Request put = write;
        put.query = {{"partNumber", StrCat(first + i + 1)}, {"uploadId", id}};
        put.headers = {"Content-Type: application/octet-stream"};
        const int64_t from = (first + i) * part;
        put.body = bytes.subspan(from, std::min(part, size - from));
        tags[first + i] = Send(put, static_cast<int>(i)).headers["etag"];
      });
    }
    std::string list = "<CompleteMultipartUpload>";
    for (size_t i = 0; i < tags.size(); ++i) {
      list += StrCat("<Part><PartNumber>", i + 1, "</PartNumber><ETag>", tags[i], "</ETag></Part>");
    }
    list += "</CompleteMultipartUpload>";
    Request complete = write;
    complete.method = "POST";
    complete.query = {{"uploadId", id}};
    complete.headers = {"Content-Type: application/xml"};
    complete.body = BytesOf(list);
    complete.may_miss = true;
    // Where the answer to an earlier attempt was lost, there is no such upload any more; what is
    // read back says whether all is well.
    Send(complete);
  } catch (const Error&) {
    Request abort = write;
    abort.method = "DELETE";
    abort.query = {{"uploadId", id}};
    abort.may_miss = true;
    try {
      if (!options_.stop.stop_requested()) Send(abort);
    } catch (const Error&) {  // RemoveUnfinished will
    }
    throw;
  }
}

HttpAnswer S3Store::GetRange(const std::string& key, int64_t begin, int64_t end, int connection) {
  return Send({.key = key,
               .action = "s3:GetObject",
               .headers = {StrCat("Range: bytes=", begin, "-", end - 1)},
               .may_miss = true},
              connection);
}

bool S3Store::Get(const std::string& name, const Sink& sink) {
  const std::string key = KeyOf(name);
  const int64_t part = options_.part_bytes;
  const HttpAnswer first = GetRange(key, 0, part);
  if (first.status == 404) return false;
  if (first.status == 416) return true;  // it is empty
  const int64_t size = SizeOf(first);
  if (size < std::ssize(first.body))
    throw IoError(StrCat(place(), " does not say how large ", name, " is"));
  sink(BytesOf(first.body));
  for (int64_t begin = std::ssize(first.body); begin < size; begin += kTogether * part) {
    std::vector<HttpAnswer> parts(std::min<int64_t>(kTogether, (size - begin + part - 1) / part));
    Together(std::ssize(parts), [&](int64_t i) {
      const int64_t from = begin + i * part, to = std::min(from + part, size);
      parts[i] = GetRange(key, from, to, static_cast<int>(i));
      if (parts[i].status == 206 && std::ssize(parts[i].body) == to - from) return;
      throw IoError(StrCat(place(), " gives another part of ", name, " than was asked for"));
    });
    for (const HttpAnswer& answer : parts) sink(BytesOf(answer.body));
  }
  return true;
}

std::vector<ObjectStore::Object> S3Store::List(const std::string& prefix) {
  const std::string root = KeyOf("");
  Request request{
      .action = "s3:ListBucket",
      .query = {{"encoding-type", "url"}, {"list-type", "2"}, {"prefix", root + prefix}}};
  std::vector<Object> all;
  for (;;) {
    const HttpAnswer answer = Send(request);
    const bool encoded = ElementOf(answer.body, "EncodingType") == "url";
    for (const std::string& element : ElementsOf(answer.body, "Contents")) {
      const std::string text = ElementOf(element, "Key"), bytes = ElementOf(element, "Size");
      const std::string key = encoded ? PercentDecoded(text) : text;
      Object object{.name = key.substr(std::min(root.size(), key.size()))};
      std::from_chars(bytes.data(), bytes.data() + bytes.size(), object.bytes);
      all.push_back(std::move(object));
    }
    const std::string next = ElementOf(answer.body, "NextContinuationToken");
    if (ElementOf(answer.body, "IsTruncated") != "true" || next.empty()) return all;
    request.query["continuation-token"] = next;
  }
}

void S3Store::Remove(const std::string& name) {
  Send({.method = "DELETE", .key = KeyOf(name), .action = "s3:DeleteObject", .may_miss = true});
}

void S3Store::RemoveUnfinished() {
  const HttpAnswer answer = Send({.action = "s3:ListBucketMultipartUploads",
                                  .query = {{"prefix", KeyOf("")}, {"uploads", ""}}});
  for (const std::string& upload : ElementsOf(answer.body, "Upload")) {
    const std::string key = ElementOf(upload, "Key");
    if (!key.starts_with(KeyOf(""))) continue;
    Send({.method = "DELETE",
          .key = key,
          .action = "s3:AbortMultipartUpload",
          .query = {{"uploadId", ElementOf(upload, "UploadId")}},
          .may_miss = true});
  }
}

}  // namespace lockstep::models
