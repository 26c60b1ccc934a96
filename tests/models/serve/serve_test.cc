// serve as users run it.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <string>

#include "core/io/file.h"
#include "core/io/json.h"
#include "models/gpt/hf/hf_format.h"
#include "models/store/http_client.h"
#include "tests/models/serve/served.h"
#include "tests/models/temp_folder.h"
#include "tests/subprocess.h"

namespace lockstep::models {
namespace {

using testing::HasSubstr;

class ServeTest : public testing::Test {
 protected:
  ServeTest() : folder_("serve") {
    const auto model = test::MakeModel(test::Gpt2Shape());
    WriteHfFolder(folder_.path(), ToHfConfig(model->config()), ToHfTensors(*model),
                  int64_t{1} << 40);
    WriteFileAtomically(folder_.Path("tokenizer.json"), test::MakeTokenizer()->ToJson());
  }

  const test::TempFolder folder_;
};

// Its address, once it answers.
std::string UrlOf(Subprocess& serve) {
  serve.WaitForOutput("Ctrl-C");
  const std::string& out = serve.output();
  const size_t begin = out.find("http://"), end = out.find("/ (a page)");
  return begin == std::string::npos || end == std::string::npos ? ""
                                                                : out.substr(begin, end - begin);
}

std::string Complete(const std::string& url, const Json& request) {
  const std::string body = request.dump();
  HttpClient client;
  return client
      .Send({.method = "POST",
             .url = url + "/v1/completions",
             .headers = {"Content-Type: application/json"},
             .body = std::as_bytes(std::span(body)),
             .direct = true})
      .body;
}

TEST_F(ServeTest, AnswersAsSampleGptAndEndsBySignals) {
  const std::string checkpoint = "--checkpoint=" + folder_.path();
  const Result sampled =
      RunProgram({"models/sample_gpt", checkpoint, "--threads=1", "--prompt=Once", "--tokens=70",
                  "--temperature=0.9", "--top_k=30", "--seed=12", "--stream=false"});
  ASSERT_EQ(sampled.exit_code, 0) << sampled;
  for (const int signal : {SIGTERM, SIGINT}) {
    Subprocess serve({"tools/serve", checkpoint, "--threads=1", "--port=0"});
    const std::string url = UrlOf(serve);
    EXPECT_THAT(serve.output(), HasSubstr("16 texts of up to 48 tokens at once, without a chat"));
    const auto answer = Json::parse(Complete(url, {{"prompt", "Once"},
                                                   {"max_tokens", 70},
                                                   {"temperature", 0.9},
                                                   {"top_k", 30},
                                                   {"seed", 12},
                                                   {"echo", true}}));
    EXPECT_EQ(answer["choices"][0]["text"].get<std::string>() + "\n", sampled.out);
    serve.Signal(signal);
    const Result ended = serve.Wait();
    EXPECT_EQ(ended.exit_code, 0) << ended;
    EXPECT_EQ(ended.err, "");
  }
}

TEST_F(ServeTest, SaysWhatIsWrongBeforeItServes) {
  const Result nothing = RunProgram({"tools/serve", "--checkpoint=" + folder_.Path("none")});
  EXPECT_EQ(nothing.exit_code, 2);
  EXPECT_THAT(nothing.err, HasSubstr("serve: "));
  const Result averages =
      RunProgram({"tools/serve", "--checkpoint=" + folder_.path(), "--weights=ema"});
  EXPECT_EQ(averages.exit_code, 2);
  EXPECT_THAT(averages.err, HasSubstr("has no averages of its weights"));
  RemoveTree(folder_.Path("tokenizer.json"));
  const Result without = RunProgram({"tools/serve", "--checkpoint=" + folder_.path()});
  EXPECT_EQ(without.exit_code, 2);
  EXPECT_THAT(without.err, HasSubstr("has no tokenizer: give --tokenizer=gpt2"));
  const Result help = RunProgram({"tools/serve", "--help"});
  EXPECT_THAT(help.out, HasSubstr("no authentication; 0.0.0.0"));
}

}  // namespace
}  // namespace lockstep::models
