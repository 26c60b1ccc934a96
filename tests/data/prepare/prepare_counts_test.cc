// What `prepare` counts: documents, empty ones, bytes and tokens, as it goes on and at its end.
#include <gtest/gtest.h>

#include "tests/data/compressed_files.h"
#include "tests/data/prepare/prepare_fixture.h"

namespace lockstep::data {
namespace {

class PrepareCountsTest : public PrepareTest {
 protected:
  // Goes on with a folder, and compares what it showed last with the manifest.
  Manifest GoOn(PrepareOptions options) {
    const auto begun = ReadManifest(options.out_dir);
    const int64_t before = begun ? begun->tokens() : 0;
    PrepareProgress last;
    options.progress = [&](const PrepareProgress& progress) { last = progress; };
    Manifest manifest = Prepare(options).manifest;
    EXPECT_EQ(last.counts, manifest.counts());
    EXPECT_EQ(last.tokens, manifest.tokens());
    EXPECT_EQ(last.new_tokens, manifest.tokens() - before);
    EXPECT_EQ(last.source_bytes, last.all_source_bytes);
    return manifest;
  }
};

TEST_F(PrepareCountsTest, ADocumentThatACutDividesCountsOnce) {
  const Manifest whole = GoOn(To("whole"));
  for (size_t shards = 1; shards < whole.shards.size(); ++shards) {
    SCOPED_TRACE(shards);
    KillAfterShards(shards, To("killed"));
    EXPECT_EQ(GoOn(To("killed")).ToJson(), whole.ToJson());
  }
}

TEST_F(PrepareCountsTest, ADocumentInPiecesCountsOnce) {
  RemoveTree(folder_ + "/sources");
  WriteLargeTexts(Source("1.txt"), Source("2.txt"), Source("3.txt"));
  PrepareOptions options = To("killed");
  options.shard_tokens = 400'000;
  options.val_fraction = 0.4;  // the third is for validation
  for (const size_t shards : {2, 5}) {
    SCOPED_TRACE(shards);
    KillAfterShards(shards, options);
    const DocumentCounts counts = GoOn(options).counts();
    EXPECT_EQ(counts.documents, 3);
    EXPECT_EQ(counts.empty, 0);
  }
}

TEST_F(PrepareCountsTest, EmptyTextFilesAreEmptyDocuments) {
  RemoveTree(folder_ + "/sources");
  WriteText(Source("1.txt"), "");
  WriteText(Source("2.txt"), "first");
  WriteText(Source("3.txt.gz"), GzipOf(""));
  WriteText(Source("4.txt"), "\xef\xbb\xbf");  // a byte-order mark
  WriteText(Source("5.jsonl"), "");            // no rows
  WriteText(Source("6.txt"), "second");
  WriteText(Source("7.txt"), "");
  PrepareOptions options = To("whole");
  options.val_fraction = 0.5;
  options.shard_tokens = 3;
  const Manifest whole = GoOn(options);
  EXPECT_EQ(whole.counts(), (DocumentCounts{.documents = 2, .empty = 4, .bytes = 11}));
  // The split is that of the documents with text.
  const std::vector<Stream> plain = PlainLoop(options);
  for (const Split split : {Split::kTrain, Split::kVal}) {
    EXPECT_EQ(Together(options.out_dir, whole, split, options.shard_tokens).tokens,
              plain[split == Split::kVal].tokens);
  }
  options.out_dir = Out("killed");
  for (size_t shards = 1; shards < whole.shards.size(); ++shards) {
    KillAfterShards(shards, options);
    EXPECT_EQ(GoOn(options).ToJson(), whole.ToJson());
  }
  // A document is not the file.
  options.out_dir = Out("lines");
  options.text.unit = DocumentUnit::kLine;
  EXPECT_EQ(GoOn(options).counts().empty, 0);
}

TEST_F(PrepareCountsTest, EmptyDocumentsOfASplitWithoutTokensCount) {
  PrepareOptions options = To("empty");
  options.paths = {Source("0.jsonl")};
  options.val_fraction = 0.5;
  WriteText(Source("0.jsonl"), "{\"body\": \"ab\"}\n{\"body\": \"\"}\n");
  EXPECT_EQ(GoOn(options).counts(), (DocumentCounts{.documents = 1, .empty = 1, .bytes = 2}));
}

}  // namespace
}  // namespace lockstep::data
