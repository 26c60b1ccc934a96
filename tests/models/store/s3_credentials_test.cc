#include "models/store/s3_credentials.h"

#include <gmock/gmock-matchers.h>

#include <vector>

#include "core/io/file.h"
#include "tests/message_of.h"
#include "tests/models/temp_folder.h"

namespace lockstep::models {
namespace {

using test::MessageOf;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

constexpr char kInOneHour[] = R"("2999-01-01T00:00:00Z")";

class S3CredentialsTest : public testing::Test {
 protected:
  S3CredentialsTest() {
    MakeDirectories(home_.Path(".aws"));
    environment_["HOME"] = home_.path();
  }

  void Write(const std::string& name, const std::string& text) {
    WriteFileAtomically(home_.Path(name), text);
  }
  // The credentials of a service.
  static std::string Json(const std::string& key, const std::string& expires = kInOneHour) {
    return StrCat(R"({"AccessKeyId": ")", key, R"(", "SecretAccessKey": "s", "Token": "t", )",
                  R"("Expiration": )", expires, "}");
  }
  // Answers those requests whose URLs are among answers_; nobody else is there.
  HttpAnswer Answer(const HttpRequest& request) {
    requests_.push_back(request);
    const auto it = answers_.find(request.url);
    if (it == answers_.end()) throw IoError("no answer");
    return {.status = 200, .body = it->second};
  }
  S3CredentialChain Chain() {
    return {environment_, [this](const HttpRequest& r) { return Answer(r); }};
  }
  std::string Key() { return Chain().Get().key; }

  test::TempFolder home_{"s3_credentials"};
  Environment environment_;
  std::map<std::string, std::string> answers_;
  std::vector<HttpRequest> requests_;
};

TEST_F(S3CredentialsTest, AreLookedForInOrder) {
  EXPECT_THAT(MessageOf<InputError>([&] { Key(); }),
              AllOf(HasSubstr("AWS_ACCESS_KEY_ID"), HasSubstr("AWS_PROFILE")));

  const std::string machine = "http://169.254.169.254/latest/";
  const std::string roles = machine + "meta-data/iam/security-credentials/";
  answers_[machine + "api/token"] = "session";
  answers_[roles] = "worker\n";
  answers_[roles + "worker"] = Json("of the machine");
  requests_.clear();
  EXPECT_EQ(Key(), "of the machine");
  ASSERT_THAT(requests_, SizeIs(3));
  EXPECT_EQ(requests_[0].method, "PUT");
  EXPECT_THAT(requests_[2].headers, ElementsAre("X-aws-ec2-metadata-token: session"));
  EXPECT_TRUE(requests_[2].direct);

  environment_["AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"] = "/task";
  environment_["AWS_CONTAINER_AUTHORIZATION_TOKEN"] = "let me in";
  answers_["http://169.254.170.2/task"] = Json("of the container");
  EXPECT_EQ(Key(), "of the container");
  EXPECT_THAT(requests_.back().headers, ElementsAre("Authorization: let me in"));

  Write("identity", "web token\n");
  environment_["AWS_WEB_IDENTITY_TOKEN_FILE"] = home_.Path("identity");
  environment_["AWS_ROLE_ARN"] = "arn:aws:iam::1:role/x";
  environment_["AWS_REGION"] = "eu-north-1";
  answers_["https://sts.eu-north-1.amazonaws.com/"] =
      "<R><AccessKeyId>of the identity</AccessKeyId><SecretAccessKey>s</SecretAccessKey>"
      "<SessionToken>t</SessionToken><Expiration>2999-01-01T00:00:00Z</Expiration></R>";
  EXPECT_EQ(Key(), "of the identity");

  Write(".aws/credentials", "[default]\naws_access_key_id = of default\naws_secret_access_key=s\n");
  EXPECT_EQ(Key(), "of default");

  environment_["AWS_PROFILE"] = "work";
  EXPECT_THAT(MessageOf<InputError>([&] { Key(); }),
              AllOf(HasSubstr("\"work\""), HasSubstr("export-credentials")));
  Write(".aws/config",
        "# mine\n[profile work]\naws_access_key_id=of work\naws_secret_access_key=s\n"
        "region = eu-west-1\nendpoint_url = https://minio:9000/\ns3 =\n  region = none\n");
  EXPECT_EQ(Key(), "of work");
  environment_.erase("AWS_REGION");
  EXPECT_EQ(Chain().region(), "eu-west-1");
  EXPECT_EQ(Chain().endpoint(), "https://minio:9000");

  environment_["AWS_ACCESS_KEY_ID"] = "of the environment";
  EXPECT_THAT(MessageOf<InputError>([&] { Key(); }), HasSubstr("AWS_SECRET_ACCESS_KEY is not"));
  environment_["AWS_SECRET_ACCESS_KEY"] = "s";
  EXPECT_EQ(Key(), "of the environment");
  EXPECT_EQ(Chain().Get().token, "");
}

TEST_F(S3CredentialsTest, AreRenewedBeforeTheyExpire) {
  environment_["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = "http://localhost/task";
  const auto in = [](std::chrono::seconds time) {
    const auto t = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now() + time);
    char text[32];
    strftime(text, sizeof(text), "\"%Y-%m-%dT%H:%M:%SZ\"", gmtime(&t));
    return std::string(text);
  };
  S3CredentialChain chain = Chain();
  answers_["http://localhost/task"] = Json("first", in(std::chrono::minutes(4)));
  EXPECT_EQ(chain.Get().key, "first");
  answers_["http://localhost/task"] = Json("second", in(std::chrono::minutes(6)));
  EXPECT_EQ(chain.Get().key, "second");
  answers_["http://localhost/task"] = Json("third");
  EXPECT_EQ(chain.Get().key, "second");
  EXPECT_TRUE(chain.Renew(chain.Get()));
  EXPECT_EQ(chain.Get().key, "third");
  EXPECT_FALSE(chain.Renew(chain.Get()));  // there are no others
}

TEST_F(S3CredentialsTest, SaysWhoGivesNone) {
  environment_["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = "http://localhost/task";
  answers_["http://localhost/task"] = "{}";
  EXPECT_THAT(MessageOf<InputError>([&] { Key(); }), HasSubstr("the container's service"));
  environment_.erase("AWS_CONTAINER_CREDENTIALS_FULL_URI");
  environment_["AWS_EC2_METADATA_DISABLED"] = "true";
  requests_.clear();
  EXPECT_THAT(MessageOf<InputError>([&] { Key(); }), HasSubstr("no credentials"));
  EXPECT_THAT(requests_, SizeIs(0));
}

TEST_F(S3CredentialsTest, EndpointsOfAws) {
  EXPECT_EQ(Chain().endpoint(), "https://s3.us-east-1.amazonaws.com");
  environment_["AWS_DEFAULT_REGION"] = "cn-north-1";
  EXPECT_EQ(Chain().endpoint(), "https://s3.cn-north-1.amazonaws.com.cn");
  environment_["AWS_ENDPOINT_URL"] = "http://all:1";
  environment_["AWS_ENDPOINT_URL_S3"] = "http://s3:1/";
  EXPECT_EQ(Chain().endpoint(), "http://s3:1");
}

}  // namespace
}  // namespace lockstep::models
