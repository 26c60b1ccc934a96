// What a folder promises as a store; s3_store_test has the same of S3.
#include "models/store/object_store.h"

#include <gmock/gmock-matchers.h>

#include "models/store/s3_store.h"
#include "models/store/s3_text.h"
#include "tests/message_of.h"
#include "tests/models/store/store_laws.h"
#include "tests/models/temp_folder.h"

namespace lockstep::models {
namespace {

using test::MessageOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class FolderStoreTest : public testing::Test {
 protected:
  test::TempFolder folder_{"folder_store"};
};

TEST_F(FolderStoreTest, KeepsTheLaws) { test::CheckLaws(*OpenStore(folder_.Path("place"))); }

TEST_F(FolderStoreTest, RemovesWhatIsUnfinished) {
  const auto store = OpenStore(folder_.path());
  test::PutText(*store, "a/b", "text");
  WriteFileAtomically(folder_.Path("a/.c.tmp"), "half");
  EXPECT_THAT(test::NamesOf(*store, ""), ElementsAre("a/b"));
  store->RemoveUnfinished();
  EXPECT_FALSE(PathExists(folder_.Path("a/.c.tmp")));
  store->Remove("a/b");
  EXPECT_FALSE(PathExists(folder_.Path("a")));  // a folder without files is no object
}

TEST_F(FolderStoreTest, NamesThePathThatCannotBeWritten) {
  WriteFileAtomically(folder_.Path("file"), "");
  const auto store = OpenStore(folder_.Path("file/below"));
  EXPECT_THAT(MessageOf<IoError>([&] { CheckWritable(*store); }),
              HasSubstr(folder_.Path("file") + ": Not a directory"));
}

TEST(S3Place, Parses) {
  EXPECT_EQ(ParseS3Place("s3://bucket").bucket, "bucket");
  EXPECT_EQ(ParseS3Place("s3://my.bucket-2//a/b//").prefix, "a/b");
  // Somebody may write a key there.
  for (const char* bad : {"s3://", "s3:///a", "s3://AKID:topsecret@bucket/a", "s3://Bucket",
                          "s3://bucket/a//b", "bucket"}) {
    const std::string message = MessageOf<InputError>([&] { ParseS3Place(bad); });
    EXPECT_THAT(message, HasSubstr("s3://bucket/prefix")) << bad;
    EXPECT_THAT(message, Not(HasSubstr("topsecret")));
  }
}

TEST(S3Text, EncodesAsSignaturesDo) {
  EXPECT_EQ(PercentEncoded("a b+c=/ä~"), "a%20b%2Bc%3D%2F%C3%A4~");
  EXPECT_EQ(PercentEncoded("a/b", /*slash=*/true), "a/b");
  EXPECT_EQ(PercentDecoded("a%20b%2Bc+d%C3%A4%2"), "a b+c dä%2");
}

TEST(S3Text, FindsElements) {
  const std::string xml = "<L><C><Key>a&amp;b &lt;</Key></C><C><Key>c</Key></C><C>";
  EXPECT_EQ(ElementsOf(xml, "C").size(), 2u);
  EXPECT_EQ(ElementOf(xml, "Key"), "a&b <");
  EXPECT_EQ(ElementOf(xml, "Size"), "");
}

}  // namespace
}  // namespace lockstep::models
