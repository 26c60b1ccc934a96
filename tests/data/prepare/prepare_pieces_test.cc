// `prepare` with files that are too large to be encoded at once.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "data/document_index.h"
#include "tests/data/prepare/prepare_fixture.h"

namespace lockstep::data {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

using PreparePiecesTest = PrepareTest;

TEST_F(PreparePiecesTest, LargeFilesAreEncodedInPieces) {
  RemoveTree(folder_ + "/sources");
  WriteLargeTexts(Source("1.txt"), Source("2.txt"), Source("3.txt"));
  for (const bool nanogpt : {false, true}) {
    for (const double val_fraction : {0.0, 0.4}) {  // 0.4: the third is for validation
      SCOPED_TRACE(StrCat(nanogpt, " ", val_fraction));
      PrepareOptions options = To(StrCat("whole", nanogpt, val_fraction > 0));
      options.nanogpt = nanogpt;
      options.val_fraction = val_fraction;
      options.shard_tokens = 200'000;
      const Manifest manifest = Prepare(options).manifest;
      const auto want = Contents(options.out_dir);
      const std::vector<Stream> streams = PlainLoop(options);
      for (const Split split : {Split::kTrain, Split::kVal}) {
        const Stream& plain = streams[split == Split::kVal];
        const Stream found = Together(options.out_dir, manifest, split, options.shard_tokens);
        EXPECT_EQ(found.tokens, plain.tokens);
        EXPECT_EQ(found.starts, plain.starts);
      }
      EXPECT_EQ(manifest.counts().documents, 3);
      EXPECT_EQ(manifest.counts().empty, 0);
      EXPECT_GT(manifest.counts().bad_utf8, 1000);
      const PrepareOptions killed = [&] {
        PrepareOptions o = options;
        o.out_dir = Out("killed");
        return o;
      }();
      bool done = false;
      for (int at = 20; !done; at += 29) {
        RemoveTree(killed.out_dir);
        done = Survives(StrCat("kill@", at), killed);
        Prepare(killed);
        ASSERT_EQ(Contents(killed.out_dir), want) << at;
      }
    }
  }
}

TEST_F(PreparePiecesTest, FoldersBegunWithWholeFilesAreGoneOnWith) {
  RemoveTree(folder_ + "/sources");
  WriteLargeTexts(Source("1.txt"), Source("2.txt"), Source("3.txt"));
  PrepareOptions options = To("begun");
  options.val_fraction = 0;
  options.shard_tokens = 1'200'000;
  const Manifest whole = Prepare(options).manifest;
  const auto want = Contents(options.out_dir);
  ASSERT_GE(whole.shards.size(), 3u);
  // What a version without pieces has written after its first shard, in the first document.
  Manifest begun = whole;
  begun.shards.resize(1);
  begun.shards[0].counts.bytes = FileSize(Source("1.txt"));  // all of the document
  begun.next = {{.at = {0, 0}, .document = 0, .token = 1'200'000}};
  for (size_t i = 1; i < whole.shards.size(); ++i) {
    RemoveTree(JoinPath(options.out_dir, whole.shards[i].file));
    RemoveTree(JoinPath(options.out_dir, IndexPathOf(whole.shards[i].file)));
  }
  EXPECT_THAT(begun.ToJson(), Not(HasSubstr("piece")));
  WriteText(JoinPath(options.out_dir, kManifestName), begun.ToJson());
  const PrepareResult result = Prepare(options);
  EXPECT_FALSE(result.was_complete);
  auto contents = Contents(options.out_dir);
  contents[kManifestName] = want.at(kManifestName);  // its shards have other counts
  EXPECT_EQ(contents, want);
  EXPECT_EQ(result.manifest.counts().bytes, whole.counts().bytes);
  EXPECT_EQ(result.manifest.counts().bad_utf8, whole.counts().bad_utf8);
  EXPECT_EQ(result.manifest.counts().documents, 3);
}

TEST_F(PreparePiecesTest, ALargeFileTakesBoundedMemory) {
  RemoveTree(folder_ + "/sources");
  const std::string folder = TestFolder();  // on disk: this one is large
  const std::string file = folder + "/large.txt";
  {
    FileWriter writer(file, {});
    std::string block;
    while (block.size() < (1 << 20)) block += "A line of some words.\n";
    for (int i = 0; i < 192; ++i) writer.Write(std::as_bytes(std::span(block)));
    writer.Close();
  }
  PrepareOptions options = To("large");
  options.paths = {file};
  options.out_dir = folder + "/out";
  options.shard_tokens = 100'000'000;
  options.val_fraction = 0;
  ASSERT_GT(FileSize(file), options.text.max_document_bytes);
  const int64_t growth = GrowthKib([&] { Prepare(options); });
  EXPECT_GT(growth, 0);
  EXPECT_THAT(growth, GrewLessThan(128 << 10));
  const Manifest manifest = *ReadManifest(options.out_dir);
  EXPECT_EQ(manifest.tokens(), FileSize(file) + 1);
  EXPECT_EQ(manifest.counts().documents, 1);
}

}  // namespace
}  // namespace lockstep::data
