// Checkpoints elsewhere: in a folder, and on an S3 server that fails.
#include "models/checkpoint/checkpoint_mirror.h"

#include <gmock/gmock-matchers.h>
#include <stdlib.h>

#include "core/io/fault.h"
#include "models/checkpoint/fetched_checkpoint.h"
#include "tests/message_of.h"
#include "tests/models/store/s3_servers.h"
#include "tests/models/store/store_laws.h"
#include "tests/models/temp_folder.h"

namespace lockstep::models {
namespace {

using test::MessageOf;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// Manifests, newest first, with these validation losses; 0: none.
std::vector<CheckpointManifest> Manifests(const std::vector<double>& losses) {
  std::vector<CheckpointManifest> all;
  for (const double loss : losses) {
    all.push_back({.serial = static_cast<int64_t>(losses.size() - all.size()),
                   .val_loss = loss > 0 ? std::optional(loss) : std::nullopt});
  }
  return all;
}

TEST(Retained, TheNewestAndTheBest) {
  EXPECT_THAT(Retained(Manifests({3, 0, 1, 2}), 2, false), ElementsAre(true, true, false, false));
  EXPECT_THAT(Retained(Manifests({3, 0, 1, 2}), 1, true), ElementsAre(true, false, true, false));
  EXPECT_THAT(Retained(Manifests({3, 0, 1}), 0, false), ElementsAre(true, true, true));
  EXPECT_THAT(Retained(Manifests({0, 0}), 1, true), ElementsAre(true, false));
  EXPECT_THAT(Retained({}, 1, true), SizeIs(0));
  EXPECT_EQ(BestOf(Manifests({2, 1, 1})), 1u);  // of equal ones, the newer
}

TEST(Retained, ComparesOnlyWhatWasMeasuredAlike) {
  auto manifests = Manifests({2, 1, 3});
  manifests[0].measured_on = "new data";
  manifests[1].measured_on = "old data";
  EXPECT_EQ(BestOf(manifests), 0u);
  manifests[1].measured_on = "";  // an older Lockstep's
  EXPECT_EQ(BestOf(manifests), 1u);
}

class MirrorTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { server_ = new test::FaultyS3; }
  static void TearDownTestSuite() { delete std::exchange(server_, nullptr); }

  void SetUp() override {
    server_->Clear();
    MakeDirectories(out());
    WriteFileAtomically(JoinPath(out(), "metrics.jsonl"), "{\"step\": 1}\n");
    for (const auto& [name, value] : test::S3Environment(server_->url())) {
      setenv(name.c_str(), value.c_str(), 1);
    }
    setenv("XDG_CACHE_HOME", root_.Path("cache").c_str(), 1);
  }

  std::string out() const { return root_.Path("out"); }
  CheckpointStore Store() const { return CheckpointStore(out(), keeps_); }

  // A checkpoint with what a start reads of it, and a weight that depends on the step and `salt`.
  Checkpoint Save(int64_t step, std::optional<double> val_loss = {}, const std::string& salt = "") {
    return Store().Save(
        step,
        [&](CheckpointWriter& writer) {
          writer.AddFile("model.safetensors", StrCat(test::TextOfSize(3000), step));
          writer.AddFile("config.json", "{}");
          writer.AddFile("trainer_state.json",
                         StrCat(R"({"format": 1, "step": )", step, R"(, "tokens_seen": 1, )",
                                R"("best_val_loss": 0, "last_loss": 1, "finished": false, )",
                                R"("data_fingerprint": ")", salt, R"(", "config": ""})"));
        },
        val_loss);
  }

  MirrorOptions Options() {
    const auto note = [this](const std::string& text) {
      const std::lock_guard lock(mutex_);
      said_.push_back(text);
    };
    return {.keep = keeps_.keep,
            .keep_best = keeps_.keep_best,
            .warn = note,
            .say = note,
            .store = test::QuickStore(ProcessEnvironment())};
  }
  bool Mirror(const std::string& place) {
    return CheckpointMirror(out(), place, Options()).Finish([] { return false; });
  }
  std::unique_ptr<ObjectStore> Open(const std::string& place) const {
    return OpenStore(place, test::QuickStore(ProcessEnvironment()));
  }
  std::vector<int64_t> StepsAt(const std::string& place) const {
    const auto store = Open(place);
    std::vector<int64_t> steps;
    for (const auto& c : RemoteCheckpoints(*store).List()) steps.push_back(c.manifest.step);
    return steps;
  }
  // What a start on an empty machine copies, and the state that it hears of.
  std::optional<int64_t> CopyTo(const std::string& folder, const std::string& place) {
    MirrorStart start{.place = place,
                      .out_dir = root_.Path(folder),
                      .keeps = keeps_,
                      .check = [](const TrainerState&, bool is_newer) { return is_newer; },
                      .store = test::QuickStore(ProcessEnvironment())};
    start.keeps.warn = Options().warn;
    MakeDirectories(start.out_dir);
    return CopyFromMirror(start);
  }

  test::TempFolder root_{"mirror"};
  CheckpointStore::Options keeps_{.keep = 2};
  std::mutex mutex_;
  std::vector<std::string> said_;
  static inline test::FaultyS3* server_ = nullptr;
};

TEST_F(MirrorTest, HasWhatTheFolderHas) {
  keeps_.keep_best = true;
  for (const std::string& place : {root_.Path("place"), std::string("s3://bucket/run")}) {
    RemoveTree(JoinPath(out(), "checkpoints"));
    CheckpointMirror mirror(out(), place, Options());
    for (const auto& [step, loss] : {std::pair(10, 2.0), {20, 1.0}, {30, 3.0}, {40, 4.0}}) {
      Save(step, loss);
      mirror.Update();
      ASSERT_TRUE(mirror.Finish([] { return false; }));
    }
    EXPECT_THAT(StepsAt(place), ElementsAre(40, 30, 20));
    EXPECT_THAT(test::NamesOf(*Open(place), "checkpoints/step-00000010"), SizeIs(0));
    EXPECT_EQ(test::TextOf(*Open(place), "metrics.jsonl"), "{\"step\": 1}\n");
    EXPECT_EQ(CopyTo("copy" + BaseName(place), place), 40);
    const std::string copy = root_.Path("copy" + BaseName(place));
    EXPECT_EQ(CheckpointStore::Verify(JoinPath(copy, "latest")).step, 40);
    EXPECT_EQ(CheckpointStore::Verify(JoinPath(copy, "best")).step, 20);
    EXPECT_EQ(ReadFile(JoinPath(copy, "metrics.jsonl")), "{\"step\": 1}\n");
    EXPECT_EQ(CopyTo("copy" + BaseName(place), place), std::nullopt);  // nothing is newer
  }
}

// The older ones are copied, too, if they are kept; the newest before them.
TEST_F(MirrorTest, BeginsWithTheNewest) {
  Save(10);
  Save(20);
  ASSERT_TRUE(Mirror("s3://bucket/run"));
  EXPECT_THAT(StepsAt("s3://bucket/run"), ElementsAre(20, 10));
  std::vector<std::string> done;
  for (const auto& request : server_->Log()) {
    const std::string path = request[1];
    if (request[0] == "PUT" && path.ends_with("DONE")) done.push_back(path);
  }
  EXPECT_THAT(done, ElementsAre(HasSubstr("step-00000020"), HasSubstr("step-00000010")));
}

TEST_F(MirrorTest, OneWithoutDoneIsNone) {
  Save(10);
  ASSERT_TRUE(Mirror(root_.Path("place")));
  const auto store = Open(root_.Path("place"));
  test::PutText(*store, "checkpoints/step-00000020/model.safetensors", "half");
  EXPECT_THAT(StepsAt(root_.Path("place")), ElementsAre(10));
  EXPECT_EQ(CopyTo("copy", root_.Path("place")), 10);
  Save(30);  // after which what is left of it is removed
  ASSERT_TRUE(Mirror(root_.Path("place")));
  EXPECT_THAT(test::NamesOf(*store, "checkpoints/step-00000020"), SizeIs(0));
}

TEST_F(MirrorTest, ReplacesAStepThatWasSavedAgain) {
  Save(10);
  ASSERT_TRUE(Mirror("s3://bucket/run"));
  Save(10, {}, "again");
  server_->Log();
  ASSERT_TRUE(Mirror("s3://bucket/run"));
  ASSERT_EQ(CopyTo("copy", "s3://bucket/run"), 10);
  EXPECT_EQ(ReadTrainerState(root_.Path("copy/latest")).data_fingerprint, "again");
  int weights = 0;
  for (const auto& request : server_->Log()) {
    const std::string path = request[1];
    weights += request[0] == "PUT" && path.find("model.safetensors") != path.npos;
  }
  EXPECT_EQ(weights, 4);  // parts, once: they are the same
}

TEST_F(MirrorTest, ReadsBackWhatItHasWritten) {
  Save(10);
  // The first requests look at what is there, and copy the metrics; then comes a file.
  for (int before = 3; before < 8; ++before) {
    server_->Clear();
    std::vector<std::string> faults(before);
    faults.push_back("corrupt");
    server_->FailNext(faults);
    ASSERT_TRUE(Mirror("s3://bucket/run")) << before;
    server_->FailNext({});
    EXPECT_EQ(CopyTo(StrCat("copy", before), "s3://bucket/run"), 10) << before;
    EXPECT_THAT(said_, testing::Each(testing::Not(HasSubstr("passed over"))));
  }
}

TEST_F(MirrorTest, SaysWhatIsMissingAndTriesAgain) {
  Save(10);
  CheckpointMirror mirror(out(), "s3://bucket/run", Options());
  ASSERT_TRUE(mirror.Finish([] { return false; }));
  server_->FailNext(std::vector<std::string>(100, "denied"));
  Save(20);
  EXPECT_FALSE(mirror.Finish([] { return false; }));
  EXPECT_THAT(said_, Contains(AllOf(HasSubstr("s3://bucket/run does not have"),
                                    HasSubstr("no permission"))));
  server_->FailNext({});
  EXPECT_TRUE(mirror.Finish([] { return false; }));
  EXPECT_THAT(StepsAt("s3://bucket/run"), ElementsAre(20, 10));
}

TEST_F(MirrorTest, WaitingEndsBySignalAndWithoutProgress) {
  Save(10);
  MirrorOptions options = Options();
  options.store.backoff = std::chrono::minutes(10);
  options.store.attempts = 100;
  server_->FailNext(std::vector<std::string>(100, "503"));
  {
    CheckpointMirror mirror(out(), "s3://bucket/run", options);
    EXPECT_FALSE(mirror.Finish([] { return true; }));
    EXPECT_THAT(said_, Contains(HasSubstr("a signal ended the waiting")));
  }
  options.patience = std::chrono::milliseconds(300);
  CheckpointMirror mirror(out(), "s3://bucket/run", options);
  EXPECT_FALSE(mirror.Finish([] { return false; }));
  EXPECT_THAT(said_, Contains(HasSubstr("nothing has moved for too long")));
}

TEST_F(MirrorTest, PassesOverADamagedOne) {
  Save(10);
  Save(20);
  ASSERT_TRUE(Mirror(root_.Path("place")));
  const auto store = Open(root_.Path("place"));
  test::PutText(*store, "checkpoints/step-00000020/model.safetensors", "damaged");
  EXPECT_EQ(CopyTo("copy", root_.Path("place")), 10);
  EXPECT_THAT(said_, Contains(AllOf(HasSubstr("passed over"), HasSubstr("step-00000020"))));
  EXPECT_THAT(CheckpointStore(root_.Path("copy")).List(), SizeIs(1));
}

TEST_F(MirrorTest, AtTheStartAProblemIsAnError) {
  EXPECT_THAT(MessageOf<InputError>([&] { CopyTo("out", "s3://nowhere/run"); }),
              HasSubstr("there is no bucket nowhere"));
  EXPECT_THAT(MessageOf<InputError>([&] { CopyTo("out", out()); }), HasSubstr("is out_dir itself"));
  server_->FailNext({"expired"});
  EXPECT_THAT(MessageOf<InputError>([&] { CopyTo("out", "s3://bucket/run"); }),
              HasSubstr("get new credentials"));
}

TEST_F(MirrorTest, FetchesOnceIntoTheCache) {
  keeps_.keep = 0;
  Save(10, 1.0);
  Save(20, 2.0);
  const std::string place = "s3://bucket/fetched";
  ASSERT_TRUE(Mirror(place));
  const std::string best = FetchCheckpoint(place, /*best=*/true);
  EXPECT_THAT(best, HasSubstr(root_.Path("cache")));
  EXPECT_EQ(CheckpointStore::Verify(best).step, 10);
  EXPECT_EQ(CheckpointStore::Verify(FetchCheckpoint(place + "/latest", true)).step, 20);
  EXPECT_EQ(CheckpointStore::Verify(FetchCheckpoint(place, false)).step, 20);
  EXPECT_EQ(FetchCheckpoint(place + "/best", false), best);
  const auto requests = server_->Log().size();
  EXPECT_EQ(CheckpointOf(place), best);  // this process knows it
  EXPECT_EQ(server_->Log().size(), requests);
  // What is damaged in the cache is fetched again.
  WriteFileAtomically(JoinPath(best, "model.safetensors"), "damaged");
  EXPECT_EQ(FetchCheckpoint(place + "/checkpoints/step-00000010/", true), best);
  EXPECT_EQ(CheckpointStore::Verify(best).step, 10);
  EXPECT_THAT(MessageOf<InputError>([&] { FetchCheckpoint(place + "/checkpoints/x", true); }),
              HasSubstr("has step-00000020, step-00000010"));
  EXPECT_THAT(MessageOf<InputError>([&] { FetchCheckpoint("s3://bucket/empty", true); }),
              HasSubstr("checkpoint.mirror"));
}

// A folder that was a mirror has no links.
TEST_F(MirrorTest, AFolderIsReadWhereItIs) {
  Save(10, 1.0);
  Save(20, 2.0);
  ASSERT_TRUE(Mirror(root_.Path("place")));
  EXPECT_EQ(CheckpointOf(root_.Path("place")), root_.Path("place/checkpoints/step-00000010"));
}

}  // namespace
}  // namespace lockstep::models
