// A bucket: on a server of the test's own, which fails in every way, and on moto, which checks
// signatures and permissions.
#include "models/store/s3_store.h"

#include <gmock/gmock-matchers.h>

#include <thread>

#include "tests/message_of.h"
#include "tests/models/store/s3_servers.h"
#include "tests/models/store/store_laws.h"

namespace lockstep::models {
namespace {

using test::CheckLaws;
using test::MessageOf;
using test::NamesOf;
using test::PutText;
using test::S3Environment;
using test::TextOf;
using test::TextOfSize;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class S3StoreTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { server_ = new test::FaultyS3; }
  static void TearDownTestSuite() { delete std::exchange(server_, nullptr); }
  void SetUp() override { server_->Clear(); }

  static std::unique_ptr<ObjectStore> Open(const std::string& url = "s3://bucket/some/where") {
    return OpenStore(url, test::QuickStore(S3Environment(server_->url())));
  }
  // The text of the InputError of a store whose next request is answered with this fault.
  static std::string Refused(const std::string& fault) {
    const auto store = Open();
    server_->FailNext({fault});
    return MessageOf<InputError>([&] { PutText(*store, "a", "text"); });
  }

  static inline test::FaultyS3* server_ = nullptr;
};

TEST_F(S3StoreTest, KeepsTheLaws) {
  CheckLaws(*Open());
  CheckLaws(*Open("s3://bucket"));
}

TEST_F(S3StoreTest, ListsMoreThanAPage) {
  const auto store = Open();
  for (int i = 0; i < 1003; ++i) PutText(*store, StrCat("many/", 1000 + i), "");
  const auto names = NamesOf(*store, "many/");
  ASSERT_EQ(names.size(), 1003u);
  EXPECT_EQ(names.front(), "many/1000");
  EXPECT_EQ(names.back(), "many/2002");
}

TEST_F(S3StoreTest, SignsEveryRequest) {
  const auto store = OpenStore("s3://bucket", [] {
    StoreOptions options = test::QuickStore(S3Environment(server_->url()));
    options.environment["AWS_SESSION_TOKEN"] = "tokenOfTests";
    return options;
  }());
  PutText(*store, "a", TextOfSize(1500));
  TextOf(*store, "a");
  store->List("");
  for (const auto& request : server_->Log()) {
    std::map<std::string, std::string> headers;
    for (const auto& [name, value] : request[2].items()) {
      std::string small = name;
      for (char& c : small) c = static_cast<char>(std::tolower(c));
      headers[small] = value;
    }
    EXPECT_THAT(headers["authorization"],
                AllOf(HasSubstr("/us-east-1/s3/aws4_request"), HasSubstr("host"),
                      HasSubstr("x-amz-content-sha256"), HasSubstr("x-amz-security-token")));
    EXPECT_EQ(headers["x-amz-security-token"], "tokenOfTests");
  }
}

TEST_F(S3StoreTest, TriesAgainWhatMayPass) {
  const std::string text = TextOfSize(8500);
  for (const std::string fault : {"cut", "truncate", "503", "500", "slowdown", "reset"}) {
    const auto store = Open();
    // Of the small one a PUT; of the large one its beginning, parts, and its end.
    server_->FailNext({fault, fault, fault});
    PutText(*store, "small", "text");
    for (int before = 0; before < 12; ++before) {
      std::vector<std::string> faults(before);
      faults.push_back(fault);
      server_->FailNext(faults);
      PutText(*store, "large", text);
      server_->FailNext(faults);
      EXPECT_EQ(TextOf(*store, "large"), text) << fault << " after " << before;
    }
    server_->FailNext({fault});
    EXPECT_EQ(NamesOf(*store, "").size(), 2u) << fault;
    server_->FailNext({fault});
    store->Remove("small");
    EXPECT_EQ(TextOf(*store, "small"), std::nullopt) << fault;
  }
}

TEST_F(S3StoreTest, NoticesAnErrorAfterTheAnswerHasBegun) {
  const auto store = Open();
  const std::string text = TextOfSize(1500);
  server_->FailNext({"", "", "", "late"});  // that of the list of parts
  PutText(*store, "a", text);
  EXPECT_EQ(TextOf(*store, "a"), text);
}

TEST_F(S3StoreTest, GivesUp) {
  const auto store = Open();
  server_->FailNext({"503", "503", "503", "503", "503"});
  EXPECT_THAT(MessageOf<IoError>([&] { PutText(*store, "a", "text"); }),
              AllOf(HasSubstr("s3://bucket/some/where"), HasSubstr("503 ServiceUnavailable")));
  // libcurl itself asks again on a new connection.
  server_->FailNext(std::vector<std::string>(20, "cut"));
  EXPECT_THAT(MessageOf<IoError>([&] { PutText(*store, "a", "text"); }),
              HasSubstr(StrCat("no answer from ", server_->url())));
}

TEST_F(S3StoreTest, SaysWhatToDo) {
  EXPECT_THAT(Refused("key"), AllOf(HasSubstr("access key is unknown"),
                                    HasSubstr("the environment (AWS_ACCESS_KEY_ID)")));
  EXPECT_THAT(Refused("secret"), HasSubstr("the secret key does not belong to the access key"));
  EXPECT_THAT(Refused("expired"), HasSubstr("get new credentials"));
  EXPECT_THAT(Refused("skew"), AllOf(HasSubstr("this machine's clock is off by 2"),
                                     HasSubstr("(it is behind)"), HasSubstr("timedatectl")));
  EXPECT_THAT(Refused("region"), HasSubstr("set AWS_REGION=eu-central-1"));
  EXPECT_THAT(Refused("moved"), HasSubstr("set AWS_REGION=eu-west-3"));
  EXPECT_THAT(Refused("bucket"), HasSubstr("there is no bucket bucket at http://127.0.0.1"));
  EXPECT_THAT(Refused("denied"), AllOf(HasSubstr("no permission"), HasSubstr("s3:PutObject")));
  EXPECT_THAT(Refused("page"), HasSubstr("a server that speaks S3?"));
  for (const char* fault : {"key", "secret", "expired", "denied", "page"}) {
    EXPECT_THAT(Refused(fault), AllOf(Not(HasSubstr("AKIDTEST")), Not(HasSubstr("secretOfTests"))));
  }
}

TEST_F(S3StoreTest, NamesAServerThatIsNotThere) {
  StoreOptions options = test::QuickStore(S3Environment("http://127.0.0.1:1"));
  const auto store = OpenStore("s3://bucket", options);
  EXPECT_THAT(MessageOf<IoError>([&] { PutText(*store, "a", ""); }),
              HasSubstr("no answer from http://127.0.0.1:1"));
  options.environment["AWS_ENDPOINT_URL"] = "http://user:topsecret@127.0.0.1:1";
  EXPECT_THAT(MessageOf<InputError>([&] { OpenStore("s3://bucket", options); }),
              AllOf(HasSubstr("AWS_ENDPOINT_URL"), Not(HasSubstr("topsecret"))));
}

TEST_F(S3StoreTest, RemovesUnfinishedUploads) {
  StoreOptions options = test::QuickStore(S3Environment(server_->url()));
  options.attempts = 1;
  const auto store = OpenStore("s3://bucket/some/where", options);
  const auto left = [&] {
    const auto log = server_->Log();
    return std::ranges::count_if(log, [](const auto& r) { return r[0] == "DELETE"; });
  };
  server_->FailNext({"", "503", "503", "503"});  // a part, and the end of the upload
  EXPECT_THAT(MessageOf<IoError>([&] { PutText(*store, "a", TextOfSize(1500)); }),
              HasSubstr("503"));
  const auto before = left();
  store->RemoveUnfinished();
  EXPECT_EQ(left(), before + 1);
  store->RemoveUnfinished();
  EXPECT_EQ(left(), before + 1);
}

TEST_F(S3StoreTest, StopsAtOnce) {
  std::stop_source stop;
  StoreOptions options = test::QuickStore(S3Environment(server_->url()));
  options.stop = stop.get_token();
  options.backoff = std::chrono::minutes(10);
  options.attempts = 100;
  const auto store = OpenStore("s3://bucket", options);
  server_->FailNext(std::vector<std::string>(100, "503"));
  std::jthread stopper([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    stop.request_stop();
  });
  EXPECT_THAT(MessageOf<IoError>([&] { PutText(*store, "a", ""); }), HasSubstr("stopped"));
}

TEST_F(S3StoreTest, CountsWhatMoves) {
  std::atomic<int64_t> moved = 0;
  StoreOptions options = test::QuickStore(S3Environment(server_->url()));
  options.moved = &moved;
  const auto store = OpenStore("s3://bucket", options);
  PutText(*store, "a", TextOfSize(9000));
  EXPECT_GE(moved, 9000);
  TextOf(*store, "a");
  EXPECT_GE(moved, 18000);
}

// ---- moto ----

class S3MotoTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { moto_ = test::StartMoto().release(); }
  static void TearDownTestSuite() { delete std::exchange(moto_, nullptr); }
  void SetUp() override {
    if (moto_ == nullptr) GTEST_SKIP() << "there is no moto: tools/setup --dev installs it";
  }

  static std::unique_ptr<ObjectStore> Open(const std::string& url, const std::string& key,
                                           const std::string& secret) {
    StoreOptions options = test::QuickStore(S3Environment(moto_->url(), key, secret));
    options.part_bytes = int64_t{5} << 20;
    return OpenStore(url, options);
  }
  static std::string Refused(const std::string& url, const std::string& key,
                             const std::string& secret) {
    return MessageOf<InputError>([&] { CheckWritable(*Open(url, key, secret)); });
  }

  static inline test::PythonServer* moto_ = nullptr;
};

TEST_F(S3MotoTest, KeepsTheLaws) {
  CheckLaws(*Open("s3://bucket/some where+", moto_->word(1), moto_->word(2)), size_t{5} << 20);
}

TEST_F(S3MotoTest, ListsMoreThanAPage) {
  const auto store = Open("s3://bucket/pages", moto_->word(1), moto_->word(2));
  for (int i = 0; i < 1003; ++i) PutText(*store, StrCat(1000 + i), "");
  EXPECT_EQ(NamesOf(*store, "").size(), 1003u);
}

TEST_F(S3MotoTest, SaysWhatToDo) {
  const std::string &key = moto_->word(1), &secret = moto_->word(2);
  EXPECT_THAT(Refused("s3://bucket", "AKIDNOBODY", secret), HasSubstr("access key is unknown"));
  EXPECT_THAT(Refused("s3://bucket", key, "wrong"), HasSubstr("does not belong to the access key"));
  EXPECT_THAT(Refused("s3://nowhere", key, secret), HasSubstr("there is no bucket nowhere"));
  EXPECT_THAT(Refused("s3://bucket", moto_->word(3), moto_->word(4)), HasSubstr("no permission"));
}

// Through a server that fails: signatures hold, since they are of the host that was asked.
TEST_F(S3MotoTest, ThroughFaults) {
  test::FaultyS3 faulty(moto_->port());
  StoreOptions options =
      test::QuickStore(S3Environment(faulty.url(), moto_->word(1), moto_->word(2)));
  options.part_bytes = int64_t{5} << 20;
  options.attempts = 20;
  faulty.FailAtRandom(300);
  const auto store = OpenStore("s3://bucket/faults", options);
  const std::string text = TextOfSize((size_t{11} << 20) + 5);
  for (int i = 0; i < 4; ++i) {
    PutText(*store, "large", text);
    EXPECT_TRUE(TextOf(*store, "large") == text);
  }
}

}  // namespace
}  // namespace lockstep::models
