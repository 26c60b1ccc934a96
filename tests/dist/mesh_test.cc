#include "dist/mesh.h"

#include <gmock/gmock-matchers.h>

#include <set>
#include <utility>

#include "tests/message_of.h"

namespace lockstep::dist {
namespace {

using lockstep::test::MessageOf;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(MeshTest, IsAllData) {
  const Mesh mesh({}, 2, 4);
  EXPECT_EQ(mesh.size("dp"), 4);
  EXPECT_EQ(mesh.coordinate("dp"), 2);
  EXPECT_EQ(mesh.size("tp"), 1);
  EXPECT_EQ(mesh.coordinate("tp"), 0);
  EXPECT_THAT(mesh.RanksAlong({"dp"}), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(mesh.RanksAlong({"tp"}), ElementsAre(2));
  EXPECT_THAT(mesh.RanksAlong({}), ElementsAre(2));
  EXPECT_EQ(mesh.Describe(), "dp 4");
  EXPECT_EQ(Mesh({}, 0, 1).Describe(), "a single rank");
}

TEST(MeshTest, TheHeadersExample) {
  const Mesh mesh({.dp = 2, .tp = 3}, 4, 6);
  EXPECT_EQ(mesh.coordinate("dp"), 1);
  EXPECT_EQ(mesh.coordinate("tp"), 1);
  EXPECT_THAT(mesh.RanksAlong({"dp"}), ElementsAre(1, 4));
  EXPECT_THAT(mesh.RanksAlong({"tp"}), ElementsAre(3, 4, 5));
}

TEST(MeshTest, DataRanksAreCutForShardingAndReusedForExperts) {
  const Mesh mesh({.dp = 4, .cp = 2, .tp = 2, .shard = 2, .ep = 4}, 13, 16);
  EXPECT_EQ(mesh.Describe(), "dp 4 (shard 2) x cp 2 x tp 2, ep 4");
  // Rank 13 is dp 3, cp 0, tp 1.
  EXPECT_THAT(mesh.RanksAlong({"dp"}), ElementsAre(1, 5, 9, 13));
  EXPECT_THAT(mesh.RanksAlong({"shard"}), ElementsAre(9, 13));
  EXPECT_THAT(mesh.RanksAlong({"replicate"}), ElementsAre(5, 13));
  EXPECT_THAT(mesh.RanksAlong({"ep"}), ElementsAre(9, 11, 13, 15));
  EXPECT_THAT(mesh.RanksAlong({"edp"}), ElementsAre(5, 13));
  EXPECT_EQ(mesh.RanksAlong({"ep", "edp"}), mesh.RanksAlong({"dp", "cp"}));
  EXPECT_EQ(mesh.RanksAlong({"shard", "replicate"}), mesh.RanksAlong({"dp"}));
  EXPECT_EQ(mesh.GroupName({"shard"}), "shard[dp=2-3,cp=0,tp=1]");
  EXPECT_EQ(mesh.GroupName({"replicate"}), "replicate[dp=1-3,cp=0,tp=1]");
  EXPECT_EQ(mesh.GroupName({"ep"}), "ep[dp=2-3,tp=1]");
}

// The groups along any axes partition the ranks: each rank is in its own group, all members agree
// on the group and its name, and no two groups share a name.
TEST(MeshTest, GroupsPartitionTheRanks) {
  const std::vector<std::pair<Mesh::Sizes, int>> meshes = {
      {{.pp = 2, .dp = 6, .tp = 2, .shard = 2}, 24},
      {{.pp = 2, .dp = 2, .cp = 3, .tp = 2, .ep = 3}, 24},
      {{.dp = 6, .cp = 2, .tp = 2, .shard = 3, .ep = 6}, 24},
      {{.dp = 2, .cp = 6, .tp = 2, .shard = 1, .ep = 2}, 24},
      {{.pp = 2, .dp = 2, .cp = 2, .tp = 2}, 16}};
  const char* const names[] = {"pp", "dp", "cp", "tp", "replicate", "shard", "edp", "ep"};
  for (const auto& [sizes, world] : meshes) {
    for (int a = 0; a < 8; ++a) {
      for (int b = a; b < 8; ++b) {
        const std::vector<std::string> along = {names[a], names[b]};
        std::set<std::pair<std::string, std::vector<int>>> groups;
        size_t members = 0;
        for (int r = 0; r < world; ++r) {
          const Mesh mesh(sizes, r, world);
          const auto ranks = mesh.RanksAlong(along);
          EXPECT_THAT(ranks, testing::Contains(r));
          EXPECT_EQ(ranks.size() % static_cast<size_t>(mesh.size(names[a])), 0u);
          if (groups.emplace(mesh.GroupName(along), ranks).second) members += ranks.size();
        }
        const std::string what =
            StrCat(Mesh(sizes, 0, world).Describe(), " along ", names[a], ", ", names[b]);
        EXPECT_EQ(members, static_cast<size_t>(world)) << what;
        std::set<std::string> known;
        for (const auto& [name, ranks] : groups) EXPECT_TRUE(known.insert(name).second) << name;
      }
    }
  }
}

TEST(MeshTest, RefusesWhatDoesNotFit) {
  EXPECT_THAT(MessageOf([] { Mesh({.dp = 2, .tp = 2}, 0, 8); }),
              HasSubstr("dp 2 x tp 2 is for 4 ranks, but there are 8; dp 4 would fit"));
  EXPECT_THAT(MessageOf([] { Mesh({.dp = 3}, 0, 8); }), HasSubstr("for 3 ranks"));
  EXPECT_THAT(MessageOf([] { Mesh({.tp = 3}, 0, 8); }), HasSubstr("for 6 ranks"));
  EXPECT_THAT(MessageOf([] { Mesh({.tp = 0}, 0, 2); }),
              HasSubstr("tp is 0; it must be at least 1"));
  EXPECT_THAT(MessageOf([] { Mesh({.dp = -1}, 0, 2); }), HasSubstr("at least 0"));
  EXPECT_THAT(MessageOf([] { Mesh({.pp = 65536, .dp = 65536, .tp = 65536}, 0, 1); }),
              HasSubstr("ranks, but there are 1"));
  EXPECT_THAT(MessageOf([] { Mesh({.dp = 2}, 2, 2); }), HasSubstr("no rank 2"));
  EXPECT_THAT(MessageOf([] { Mesh({.dp = 4, .shard = 3}, 0, 4); }),
              HasSubstr("shard 3 does not divide dp 4"));
  EXPECT_THAT(MessageOf([] { Mesh({.dp = 3, .cp = 4, .ep = 6}, 0, 12); }),
              HasSubstr("ep 6 does not fit dp 3 x cp 4"));
  EXPECT_THAT(MessageOf([] { Mesh({}, 0, 2).size("ddp"); }),
              HasSubstr("'ddp' is not an axis; the axes are pp, dp"));
}

}  // namespace
}  // namespace lockstep::dist
