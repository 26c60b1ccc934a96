#include "models/checkpoint/checkpoint_store.h"

#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>
#include <sys/mount.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <set>

#include "core/error.h"
#include "core/io/fault.h"
#include "core/io/safetensors.h"
#include "tests/models/checkpoint/child.h"
#include "tests/models/temp_folder.h"

namespace lockstep::models {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::Throws;
using ::testing::UnorderedElementsAre;

// Three files, several writes each; different bytes for every step.
void WriteContent(int64_t step, CheckpointWriter& writer) {
  const Tensor weight = Tensor::FromVector<float>({float(step), 1, 2, 3, 4, 5}, {2, 3});
  const std::vector<SafetensorsItem> items = {SafetensorsItem::Of("weight", weight),
                                              SafetensorsItem::Of("bias", weight)};
  writer.AddSafetensors("model.safetensors", items, {{"step", std::to_string(step)}});
  writer.AddFile("config.json", "{\"n_layer\": 2}\n");
  writer.AddFile("trainer_state.json", [&](FileWriter& file) {
    for (int i = 0; i < 3; ++i) {
      file.Write(StrCat("step ", step, " line ", i, "\n"));
      file.Flush();
    }
  });
}

class CheckpointStoreTest : public ::testing::Test {
 protected:
  void SetUp() override { Fresh(); }

  // Starts with an empty run folder.
  void Fresh() {
    RemoveTree(out());
    MakeDirectories(out());
    warnings_.clear();
  }

  std::string out() const { return root_.Path("out"); }
  std::string Folder(int64_t step) const {
    return JoinPath(out(), StrCat("checkpoints/step-0000",
                                  step < 10    ? "000"
                                  : step < 100 ? "00"
                                               : "0",
                                  step));
  }
  CheckpointStore Store(int64_t keep = 0) {
    return CheckpointStore(
        out(), {.keep = keep, .warn = [this](const std::string& w) { warnings_.push_back(w); }});
  }
  Checkpoint Save(int64_t step, int64_t keep = 0) {
    return Store(keep).Save(step, [&](CheckpointWriter& w) { WriteContent(step, w); });
  }

  // -1 if there is none. Checks that its content is that of its step.
  int64_t Newest() {
    const std::optional<Checkpoint> newest = Store().FindNewest();
    if (!newest) return -1;
    const SafetensorsFile model =
        SafetensorsFile::Open(JoinPath(newest->path, "model.safetensors"));
    EXPECT_EQ(model.Get("weight").ToTensor().ToVector<float>()[0], newest->step);
    EXPECT_EQ(CheckpointStore::Verify(newest->path).step, newest->step);
    return newest->step;
  }
  std::vector<std::string> Names() { return ListDirectory(JoinPath(out(), "checkpoints")); }

  // Runs f in a child process that dies at an operation; returns whether f finished.
  static bool Survives(const std::string& plan, const std::function<void()>& f) {
    SCOPED_TRACE(plan);
    return test::InChild([&] {
      FaultInjector injector(FaultPlan::Parse(plan));
      const ScopedFaultInjector scope(&injector);
      f();
    });
  }

  const test::TempFolder root_{"lockstep_checkpoint_store_test"};
  std::vector<std::string> warnings_;
};

TEST_F(CheckpointStoreTest, SavesAndFinds) {
  EXPECT_EQ(Newest(), -1);
  const Checkpoint saved = Save(10);
  EXPECT_EQ(saved.step, 10);
  EXPECT_EQ(saved.path, Folder(10));
  EXPECT_EQ(Newest(), 10);
  Save(20);
  EXPECT_EQ(Newest(), 20);
  EXPECT_THAT(ListDirectory(Folder(20)),
              ElementsAre("DONE", "config.json", "model.safetensors", "trainer_state.json"));
  EXPECT_THAT(ListDirectory(out()), ElementsAre("checkpoints", "latest"));
  EXPECT_EQ(CheckpointStore::Verify(JoinPath(out(), "latest")).step, 20);
  EXPECT_EQ(ReadFile(JoinPath(out(), "latest/config.json")), "{\"n_layer\": 2}\n");
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(CheckpointStoreTest, TensorsOfAnyLayout) {
  const Tensor x = Tensor::FromVector<float>({1, 2, 3, 4, 5, 6}, {2, 3}).Transpose(0, 1);
  const std::vector<SafetensorsItem> items = {SafetensorsItem::Of("x", x)};
  const Checkpoint saved =
      Store().Save(1, [&](CheckpointWriter& w) { w.AddSafetensors("m.safetensors", items); });
  const Tensor y = SafetensorsFile::Open(JoinPath(saved.path, "m.safetensors")).Get("x").ToTensor();
  EXPECT_EQ(y.shape(), Shape({3, 2}));
  EXPECT_EQ(y.ToVector<float>(), (std::vector<float>{1, 4, 2, 5, 3, 6}));
}

TEST_F(CheckpointStoreTest, KeepsTheNewest) {
  for (int64_t step = 1; step <= 5; ++step) Save(step, 2);
  EXPECT_THAT(Names(), ElementsAre("step-00000004", "step-00000005"));
  EXPECT_EQ(Newest(), 5);
  Save(6, 1);
  EXPECT_THAT(Names(), ElementsAre("step-00000006"));
  EXPECT_THROW(Store(-1), ArgumentError);
}

TEST_F(CheckpointStoreTest, KeepsTheBestBesidesTheNewest) {
  const auto save = [&](int64_t step, std::optional<double> val_loss, bool keep_best = true) {
    CheckpointStore store(out(), {.keep = 2, .keep_best = keep_best, .warn = {}});
    store.Save(
        step, [&](CheckpointWriter& w) { WriteContent(step, w); }, val_loss);
    return store.Best() ? store.Best()->step : -1;
  };
  const auto steps = [&] {
    std::vector<int64_t> all;
    for (const Checkpoint& c : Store().List()) all.push_back(c.step);
    return all;
  };
  EXPECT_EQ(save(1, {}), -1);
  EXPECT_EQ(save(2, 2.5), 2);
  EXPECT_EQ(save(3, 1.5), 3);
  EXPECT_EQ(save(4, 1.75), 3);
  EXPECT_EQ(save(5, NAN), 3);
  EXPECT_EQ(save(6, 1.625), 3);
  EXPECT_THAT(steps(), ElementsAre(6, 5, 3));
  EXPECT_EQ(CheckpointStore::Verify(JoinPath(out(), "best")).step, 3);
  // Runs resume from the newest, not from the best.
  EXPECT_EQ(Store().FindNewest()->step, 6);
  // A better one replaces it.
  EXPECT_EQ(save(7, 0.1), 7);
  EXPECT_THAT(steps(), ElementsAre(7, 6));
  EXPECT_EQ(CheckpointStore::Verify(JoinPath(out(), "best")).step, 7);
  save(8, 1.0, /*keep_best=*/false);
  save(9, 1.0, /*keep_best=*/false);
  EXPECT_THAT(steps(), ElementsAre(9, 8));
  EXPECT_FALSE(PathExists(JoinPath(out(), "best")));
}

// Such as the one where a decay begins.
TEST_F(CheckpointStoreTest, KeepsTheNewestPinnedOne) {
  const auto save = [&](int64_t step, bool pinned) {
    CheckpointStore store(out(), {.keep = 1, .warn = {}});
    store.Save(
        step, [&](CheckpointWriter& w) { WriteContent(step, w); }, {}, "", pinned);
  };
  save(1, false);
  save(2, true);
  save(3, false);
  save(4, false);
  EXPECT_THAT(Names(), ElementsAre("step-00000002", "step-00000004"));
  save(5, true);
  EXPECT_THAT(Names(), ElementsAre("step-00000005"));
  save(6, false);
  EXPECT_THAT(Names(), ElementsAre("step-00000005", "step-00000006"));
  EXPECT_EQ(Newest(), 6);
  const auto manifest = [](int64_t step, bool pinned) {
    return CheckpointManifest{.step = step, .serial = step, .pinned = pinned};
  };
  const CheckpointManifest all[] = {manifest(9, false), manifest(8, false), manifest(7, true),
                                    manifest(6, true)};
  EXPECT_THAT(Retained(all, 1, true), ElementsAre(true, false, true, false));
  EXPECT_TRUE(ParseManifest(ManifestText(all[2]), "DONE").pinned);
}

// A run that goes back to step 10 and saves step 15, which is then the newest, although 20 is
// larger.
// One measured on other data is no better for a lower loss.
TEST_F(CheckpointStoreTest, TheBestIsAmongThoseMeasuredOnTheSameData) {
  const auto save = [&](int64_t step, double loss, const std::string& on) {
    Store().Save(
        step, [&](CheckpointWriter& w) { WriteContent(step, w); }, loss, on);
    return Store().Best()->step;
  };
  EXPECT_EQ(save(1, 1.0, "a"), 1);
  EXPECT_EQ(save(2, 2.0, "a"), 1);
  EXPECT_EQ(save(3, 3.0, "b"), 3);
  EXPECT_EQ(save(4, 2.5, "b"), 4);
  EXPECT_EQ(save(5, 2.0, ""), 5);  // of an earlier version: comparable with all
}

TEST_F(CheckpointStoreTest, WhatSomebodyReadsStays) {
  Save(10);
  {
    const HeldCheckpoint held(JoinPath(out(), "latest"));
    EXPECT_EQ(held.path(), Folder(10));
    const HeldCheckpoint another = held;
    Save(20, /*keep=*/1);
    EXPECT_EQ(held.path(), Folder(10));  // wherever latest leads now
    EXPECT_EQ(CheckpointStore::Verify(held.path()).step, 10);
  }
  Save(30, /*keep=*/1);
  EXPECT_THAT(Names(), ElementsAre("step-00000030"));
  EXPECT_EQ(HeldCheckpoint(out()).path(), out());  // not a checkpoint: nothing to hold
}

// It may be good, and a run that went on from an older one would replace it.
TEST_F(CheckpointStoreTest, ACheckpointThatCannotBeReadIsNotPassedOver) {
  Save(10);
  Save(20);
  const std::string done = JoinPath(Folder(20), "DONE");
  RenameDurably(done, done + "-moved");
  MakeDirectories(done);  // reading it fails, whoever asks
  EXPECT_THAT([&] { Newest(); }, Throws<IoError>());
  RemoveTree(done);
  RenameDurably(done + "-moved", done);
  EXPECT_EQ(Newest(), 20);
}

TEST_F(CheckpointStoreTest, NewestIsWhatWasSavedLast) {
  Save(10);
  Save(20);
  Save(15, 2);
  EXPECT_EQ(Newest(), 15);
  EXPECT_THAT(Names(), ElementsAre("step-00000015", "step-00000020"));
  Save(20);
  EXPECT_EQ(Newest(), 20);
  std::vector<int64_t> steps;
  for (const Checkpoint& checkpoint : Store().List()) steps.push_back(checkpoint.step);
  EXPECT_THAT(steps, ElementsAre(20, 15));
}

TEST_F(CheckpointStoreTest, OneThatMissesAFileIsNotCounted) {
  Save(10);
  Save(20);
  Save(30);
  RemoveTree(JoinPath(Folder(30), "config.json"));
  Save(40, 2);
  EXPECT_THAT(Names(), ElementsAre("step-00000020", "step-00000030", "step-00000040"));
}

// The checks of one crash: from a run folder with step 10 in it, `save` dies at operation k, for
// every k. Whatever is left, the newest good checkpoint is the old or the new one, and the next
// save works and cleans up.
TEST_F(CheckpointStoreTest, KillAtEveryOperation) {
  for (const std::string fault : {"kill@", "tear@"}) {
    std::set<int64_t> seen;
    bool completed = false;
    int at = 1;
    for (; !completed; ++at) {
      ASSERT_LT(at, 200);
      Fresh();
      Save(5);
      Save(10);
      completed = Survives(fault + std::to_string(at), [&] { Save(20, 2); });
      const int64_t newest = Newest();
      seen.insert(newest);
      EXPECT_TRUE(newest == 20 || (newest == 10 && !completed)) << fault << at;
      // latest may lag, but never points to something broken.
      EXPECT_NO_THROW(CheckpointStore::Verify(JoinPath(out(), "latest"))) << fault << at;
      EXPECT_THAT(warnings_, IsEmpty()) << fault << at;
      for (const std::string& name : Names()) {  // every checkpoint is complete
        if (name.starts_with(".")) continue;
        EXPECT_NO_THROW(CheckpointStore::Verify(JoinPath(out(), "checkpoints/" + name)))
            << fault << at;
      }
      Save(30, 2);
      EXPECT_EQ(Newest(), 30);
      EXPECT_THAT(Names(), SizeIs(2)) << fault << at;  // no leftovers
      EXPECT_EQ(CheckpointStore::Verify(JoinPath(out(), "latest")).step, 30);
    }
    EXPECT_THAT(seen, UnorderedElementsAre(10, 20));
    EXPECT_GT(at, 25);
  }
}

// The only checkpoint is replaced by another one of the same step.
TEST_F(CheckpointStoreTest, KillAtEveryOperationOfAReplacement) {
  bool completed = false;
  for (int at = 1; !completed; ++at) {
    ASSERT_LT(at, 200);
    Fresh();
    Save(20);
    completed = Survives("kill@" + std::to_string(at), [&] { Save(20, 1); });
    EXPECT_EQ(Newest(), 20) << at;
    EXPECT_THAT(warnings_, IsEmpty()) << at;
    if (at % 2 == 0) {
      Store().CleanUp();  // as at the start of a run
      EXPECT_THAT(Names(), ElementsAre("step-00000020"));
      EXPECT_EQ(Newest(), 20) << at;
    }
    Save(20, 1);
    EXPECT_EQ(Newest(), 20) << at;
    EXPECT_THAT(Names(), ElementsAre("step-00000020"));
  }
}

// A disk that is full for one operation, or from some operation on.
TEST_F(CheckpointStoreTest, NoSpaceAtEveryOperation) {
  for (const std::string suffix : {"", "+"}) {
    for (const bool replace : {false, true}) {
      bool disturbed = true;
      int failures = 0;
      for (int at = 1; disturbed; ++at) {
        ASSERT_LT(at, 200);
        Fresh();
        Save(5);
        Save(10);
        const int64_t step = replace ? 10 : 20;
        bool failed = false;
        {
          FaultInjector injector(FaultPlan::Parse(StrCat("enospc@", at, suffix)));
          const ScopedFaultInjector scope(&injector);
          try {
            Save(step, 2);
          } catch (const IoError& error) {
            failed = true;
            EXPECT_THAT(error.what(), HasSubstr("The disk is full"));
          }
          disturbed = injector.operations() >= at;
        }
        failures += failed;
        // Later faults only hit removals, which a full disk allows.
        EXPECT_TRUE(!disturbed || failed || !warnings_.empty() || suffix == "+") << at;
        const std::string where = StrCat("enospc@", at, suffix, " replace ", replace);
        if (failed) {
          for (const std::string& name : Names()) EXPECT_FALSE(name.starts_with(".tmp")) << where;
          EXPECT_TRUE(PathExists(Folder(10)) || suffix == "+") << where;
        }
        warnings_.clear();
        EXPECT_TRUE(Newest() == step || (failed && Newest() == 10)) << where;
        if (failed) {
          EXPECT_NO_THROW(CheckpointStore::Verify(Folder(5))) << where;
        }
        EXPECT_THAT(warnings_, IsEmpty()) << where;
        Save(30, 2);
        EXPECT_EQ(Newest(), 30) << where;
        EXPECT_THAT(Names(), SizeIs(2)) << where;
      }
      EXPECT_GT(failures, 15);
    }
  }
}

// Power can fail at any time: nothing may be renamed into place before it is on the disk.
TEST_F(CheckpointStoreTest, SyncsEverythingBeforeTheRename) {
  FaultInjector recorder;
  {
    const ScopedFaultInjector scope(&recorder);
    Save(20);
  }
  const std::string temporary = JoinPath(out(), "checkpoints/.tmp-step-00000020");
  std::set<std::string> unsynced;
  bool renamed = false, parent_synced = false;
  for (const FaultInjector::Event& event : recorder.events()) {
    switch (event.op) {
      case FileOp::kCreate:
        if (event.path.starts_with(temporary)) unsynced.insert(ParentPath(event.path));
        [[fallthrough]];
      case FileOp::kWrite:
        unsynced.insert(event.path);
        break;
      case FileOp::kSync:
        unsynced.erase(event.path);
        if (renamed && event.path == JoinPath(out(), "checkpoints")) parent_synced = true;
        break;
      case FileOp::kRename:
        if (event.target == Folder(20)) {
          renamed = true;
          EXPECT_THAT(unsynced, IsEmpty());
        } else {
          EXPECT_TRUE(parent_synced) << "latest is replaced before the checkpoint is safe";
        }
        break;
      default:
        break;
    }
  }
  EXPECT_TRUE(renamed);
}

class CorruptionTest : public CheckpointStoreTest {
 protected:
  // Step 20's file gets this content, or is removed; a warning must name it, and 10 be used.
  void ExpectFallback(const std::string& name, std::optional<std::string> content,
                      const std::string& what) {
    const std::string path = JoinPath(Folder(20), name);
    const std::string good = ReadFile(path);
    if (content) {
      WriteFileAtomically(path, *content);
    } else {
      RemoveTree(path);
    }
    warnings_.clear();
    EXPECT_EQ(Newest(), 10) << name << ": " << what;
    EXPECT_THAT(warnings_,
                ElementsAre(AllOf(HasSubstr(path), HasSubstr("skipped"), HasSubstr(what))));
    EXPECT_THROW(CheckpointStore::Verify(Folder(20)), InputError);
    WriteFileAtomically(path, good);
  }
};

TEST_F(CorruptionTest, EverySectionOfEveryFile) {
  Save(10);
  Save(20);
  for (const std::string name : {"model.safetensors", "config.json", "trainer_state.json"}) {
    const std::string good = ReadFile(JoinPath(Folder(20), name));
    for (size_t at = 0; at < good.size(); at += 1 + good.size() / 16) {
      std::string bad = good;
      bad[at] ^= 1;
      ExpectFallback(name, bad, "SHA-256");
      ExpectFallback(name, good.substr(0, at), "truncated");
    }
    ExpectFallback(name, good + "x", "were written");
    ExpectFallback(name, std::nullopt, "is missing");
  }
  EXPECT_EQ(Newest(), 20);  // all is restored
}

TEST_F(CorruptionTest, EveryBitOfTheManifest) {
  Save(10);
  Save(20);
  const std::string good = ReadFile(JoinPath(Folder(20), "DONE"));
  for (size_t at = 0; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] ^= static_cast<char>(1 << (at % 8));
    EXPECT_THROW(ParseManifest(bad, "DONE"), InputError) << at;
    EXPECT_THROW(ParseManifest(good.substr(0, at), "DONE"), InputError) << at;
  }
  ExpectFallback("DONE", good.substr(0, good.size() / 2), "not valid JSON");
  ExpectFallback("DONE", "", "not valid JSON");
  std::string flipped = good;
  flipped[good.find("\"bytes\": ") + 9] ^= 1;
  ExpectFallback("DONE", flipped, "damaged");
  ExpectFallback("DONE", ReadFile(JoinPath(Folder(10), "DONE")), "a different step");
}

TEST_F(CorruptionTest, ForeignManifests) {
  CheckpointManifest manifest;
  for (const std::string name : {"../x", "/etc/passwd", "", ".", ".."}) {
    manifest.files = {{name, 1, "00"}};
    EXPECT_THROW(ParseManifest(ManifestText(manifest), "DONE"), InputError) << name;
  }
  for (const char* text : {"{}", "[]", "null", "{\"checkpoint\": {}}", "{\"checkpoint\": []}"}) {
    EXPECT_THROW(ParseManifest(text, "DONE"), InputError) << text;
  }
}

TEST_F(CheckpointStoreTest, FallsBackSeveralTimesAndThenGivesUp) {
  for (const int64_t step : {10, 20, 30}) Save(step);
  WriteFileAtomically(JoinPath(Folder(30), "config.json"), "x");
  RemoveTree(JoinPath(Folder(20), "model.safetensors"));
  EXPECT_EQ(Newest(), 10);
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("step-00000030/config.json is truncated"),
                                     HasSubstr("step-00000020/model.safetensors is missing")));
  // Saving over a damaged one repairs it.
  Save(20);
  EXPECT_EQ(Newest(), 20);
  RemoveTree(JoinPath(Folder(20), "config.json"));
  WriteFileAtomically(JoinPath(Folder(10), "config.json"), "x");
  try {
    Newest();
    FAIL() << "found a checkpoint";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("no usable checkpoint"), HasSubstr("step-00000010/config.json"),
                      HasSubstr("step-00000020/config.json"), HasSubstr("step-00000030")));
  }
}

TEST_F(CheckpointStoreTest, IncompleteFoldersAreIgnored) {
  MakeDirectories(Folder(30));
  EXPECT_EQ(Newest(), -1);
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("incomplete")));
  Save(20);
  EXPECT_EQ(Newest(), 20);
  EXPECT_THAT(Store().List(), SizeIs(1));
  EXPECT_THROW(CheckpointStore::Verify(Folder(30)), InputError);
  EXPECT_THROW(CheckpointStore::Verify(JoinPath(out(), "none")), InputError);
  // Names that are not ours are left alone.
  MakeDirectories(JoinPath(out(), "checkpoints/step-7"));
  MakeDirectories(JoinPath(out(), "checkpoints/notes"));
  Save(40, 1);
  EXPECT_TRUE(PathExists(JoinPath(out(), "checkpoints/step-7")));
  EXPECT_TRUE(PathExists(JoinPath(out(), "checkpoints/notes")));
}

TEST_F(CheckpointStoreTest, AFailingWriterLeavesNothing) {
  Save(10);
  EXPECT_THROW(Store().Save(20,
                            [](CheckpointWriter& writer) {
                              writer.AddFile("config.json", "{}");
                              throw std::runtime_error("from the trainer");
                            }),
               std::runtime_error);
  EXPECT_THAT(Names(), ElementsAre("step-00000010"));
  for (const std::string name : {"", ".", "..", ".hidden", "a/b", "DONE"}) {
    EXPECT_THROW(Store().Save(20, [&](CheckpointWriter& w) { w.AddFile(name, "x"); }),
                 ArgumentError)
        << name;
  }
  EXPECT_THROW(Store().Save(20,
                            [](CheckpointWriter& writer) {
                              writer.AddFile("a", "x");
                              writer.AddFile("a", "x");
                            }),
               ArgumentError);
  EXPECT_THROW(Save(-1), ArgumentError);
  EXPECT_EQ(Newest(), 10);
}

TEST_F(CheckpointStoreTest, AnObstacleAtLatestIsAWarning) {
  MakeDirectories(JoinPath(out(), "latest"));
  Save(10, 1);
  EXPECT_THAT(warnings_, ElementsAre(AllOf(HasSubstr("latest is not updated"),
                                           HasSubstr(JoinPath(out(), "latest")))));
  EXPECT_EQ(Newest(), 10);
}

// What latest points to must not be removed.
TEST_F(CheckpointStoreTest, NothingIsRemovedWhileLatestLags) {
  Save(10, 1);
  MakeDirectories(JoinPath(out(), ".latest.tmp/in the way"));
  Save(20, 1);
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("latest is not updated")));
  EXPECT_EQ(CheckpointStore::Verify(JoinPath(out(), "latest")).step, 10);
  RemoveTree(JoinPath(out(), ".latest.tmp"));
  Save(30, 1);
  EXPECT_THAT(Names(), ElementsAre("step-00000030"));
}

// A disk that is really full: a tmpfs with room for two checkpoints of 300 kB, not for three.
TEST_F(CheckpointStoreTest, FullFileSystem) {
  const std::string small = root_.Path("small");
  MakeDirectories(small);
  if (mount("tmpfs", small.c_str(), "tmpfs", 0, "size=768k") != 0) {
    GTEST_SKIP() << "mounting a small file system needs privileges: " << std::strerror(errno);
  }
  const auto save = [&](int64_t step, int64_t keep) {
    CheckpointStore(small, {.keep = keep, .warn = {}}).Save(step, [](CheckpointWriter& writer) {
      writer.AddFile("data", std::string(300'000, 'x'));
    });
  };
  save(10, 0);
  save(20, 0);
  std::string message;
  try {
    save(30, 0);
  } catch (const IoError& error) {
    message = error.what();
  }
  const CheckpointStore store(small, {});
  const std::optional<Checkpoint> newest = store.FindNewest();
  const size_t folders = ListDirectory(JoinPath(small, "checkpoints")).size();
  RemoveTree(JoinPath(small, "checkpoints/step-00000010"));
  save(40, 1);
  const std::optional<Checkpoint> later = store.FindNewest();
  EXPECT_EQ(umount(small.c_str()), 0);
  EXPECT_THAT(message, AllOf(HasSubstr("The disk is full"), HasSubstr("data")));
  EXPECT_EQ(newest->step, 20);
  EXPECT_EQ(folders, 2u);
  EXPECT_EQ(later->step, 40);
}

}  // namespace
}  // namespace lockstep::models
