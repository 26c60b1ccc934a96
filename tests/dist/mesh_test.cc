#include "dist/mesh.h"

#include <gmock/gmock.h>

#include <set>

#include "tests/message_of.h"

namespace lockstep::dist {
namespace {

using lockstep::test::MessageOf;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(MeshTest, HasOneAxis) {
  const Mesh mesh = Mesh::DataParallel(2, 4);
  EXPECT_EQ(mesh.size("dp"), 4);
  EXPECT_EQ(mesh.coordinate("dp"), 2);
  EXPECT_EQ(mesh.size("tp"), 1);
  EXPECT_EQ(mesh.coordinate("tp"), 0);
  EXPECT_THAT(mesh.RanksAlong("dp"), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(mesh.RanksAlong("tp"), ElementsAre(2));
  EXPECT_EQ(mesh.Describe(), "dp 4");
}

TEST(MeshTest, TheHeadersExample) {
  const Mesh mesh({{"dp", 2}, {"tp", 3}}, 4, 6);
  EXPECT_EQ(mesh.coordinate("dp"), 1);
  EXPECT_EQ(mesh.coordinate("tp"), 1);
  EXPECT_THAT(mesh.RanksAlong("dp"), ElementsAre(1, 4));
  EXPECT_THAT(mesh.RanksAlong("tp"), ElementsAre(3, 4, 5));
}

// The groups along any axes partition the ranks: each rank is in its own group, all members agree
// on the group and its name, and no two groups share a name.
TEST(MeshTest, GroupsPartitionTheRanks) {
  const std::vector<Mesh::Axis> axes = {{"pp", 2}, {"dp", 3}, {"fsdp", 2}, {"tp", 2}};
  const int world = 24;
  for (const std::vector<std::string>& along :
       {std::vector<std::string>{"pp"}, {"dp"}, {"tp"}, {"dp", "fsdp"}, {"pp", "tp"}, {"cp"}}) {
    std::set<std::pair<std::string, std::vector<int>>> groups;
    size_t members = 0;
    for (int r = 0; r < world; ++r) {
      const Mesh mesh(axes, r, world);
      const auto ranks = mesh.RanksAlong(along);
      EXPECT_THAT(ranks, testing::Contains(r));
      size_t product = 1;
      for (const std::string& axis : along) product *= static_cast<size_t>(mesh.size(axis));
      EXPECT_EQ(ranks.size(), product);
      if (groups.emplace(mesh.GroupName(along), ranks).second) members += ranks.size();
    }
    EXPECT_EQ(members, static_cast<size_t>(world));
    std::set<std::string> names;
    for (const auto& [name, ranks] : groups) EXPECT_TRUE(names.insert(name).second) << name;
  }
  EXPECT_EQ(Mesh(axes, 23, world).GroupName(std::vector<std::string>{"dp", "fsdp"}),
            "dp+fsdp[pp=1,tp=1]");
}

TEST(MeshTest, RefusesWhatDoesNotFit) {
  EXPECT_THAT(MessageOf([] {
                Mesh({{"dp", 2}, {"tp", 2}}, 0, 8);
              }),
              HasSubstr("dp 2 x tp 2 is for 4 ranks, but there are 8; with dp 2 times as large"));
  EXPECT_THAT(MessageOf([] { Mesh({{"dp", 3}}, 0, 8); }), HasSubstr("for 3 ranks"));
  EXPECT_THAT(MessageOf([] { Mesh({{"data", 2}}, 0, 2); }), HasSubstr("'data' is not an axis"));
  EXPECT_THAT(MessageOf([] { Mesh({{"dp", 1}, {"dp", 2}}, 0, 2); }), HasSubstr("twice"));
  EXPECT_THAT(MessageOf([] { Mesh({{"dp", 0}}, 0, 0); }), HasSubstr("at least 1"));
  EXPECT_THAT(MessageOf([] {
                Mesh({{"dp", 65536}, {"tp", 65536}, {"pp", 65536}}, 0, 1);
              }),
              HasSubstr("ranks, but there are 1"));
  EXPECT_THAT(MessageOf([] { Mesh({{"dp", 2}}, 2, 2); }), HasSubstr("no rank 2"));
  EXPECT_THAT(MessageOf([] { Mesh::DataParallel(0, 2).size("ddp"); }), HasSubstr("'ddp'"));
}

}  // namespace
}  // namespace lockstep::dist
