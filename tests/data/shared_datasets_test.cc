// Data sets that one process encodes and others map: the same in every respect, and gone with the
// processes.
#include "data/shared_datasets.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <optional>
#include <tuple>
#include <utility>

#include "core/io/fault.h"
#include "tests/data/dataset_fixture.h"

namespace lockstep::data {
namespace {

std::vector<int32_t> LossMask(const TokenSource& source) {
  std::vector<int32_t> mask(source.size());
  source.ReadLossMask(0, mask);
  return mask;
}

void ExpectSame(const TokenSource& got, const TokenSource& want) {
  EXPECT_EQ(All(got), All(want));
  EXPECT_EQ(got.has_loss_mask(), want.has_loss_mask());
  EXPECT_EQ(LossMask(got), LossMask(want));
  ASSERT_EQ(got.has_documents(), want.has_documents());
  if (!want.has_documents()) return;
  EXPECT_EQ(DocumentStarts(got), DocumentStarts(want));
  const int64_t middle = want.size() / 2;
  std::array<int32_t, 3> a{}, b{};
  got.ReadDocumentStarts(middle, a);
  want.ReadDocumentStarts(middle, b);
  EXPECT_EQ(a, b);
}

void ExpectSame(const Dataset& got, const Dataset& want) {
  EXPECT_EQ(std::tie(got.name, got.note, got.fingerprint, got.vocab_size),
            std::tie(want.name, want.note, want.fingerprint, want.vocab_size));
  EXPECT_EQ(got.tokenizer->name(), want.tokenizer->name());
  EXPECT_EQ(got.tokenizer->ToJson(), want.tokenizer->ToJson());
  EXPECT_EQ(got.tokenizer->ConfigJson(), want.tokenizer->ConfigJson());
  ExpectSame(*got.train, *want.train);
  ASSERT_EQ(got.val == nullptr, want.val == nullptr);
  if (want.val) ExpectSame(*got.val, *want.val);
}

class SharedDatasetsTest : public DatasetTest {
 protected:
  // A data set of tokens that say nothing, and how often it was encoded.
  Dataset Encode(SharedDatasets* shared, const std::string& path = "path") {
    const DatasetOptions options = {.path = path, .shared = {shared, [](SharedDatasets*) {}}};
    const auto counts = std::as_writable_bytes(std::span(&count_, 1));
    Dataset dataset;
    if (TakeShared(options, counts, &dataset)) return dataset;
    ++encoded_;
    count_ = 7;
    dataset.name = "a name";
    dataset.note = "a note";
    dataset.fingerprint = "a hash";
    dataset.tokenizer = MakeTokenizer("byte", "");
    dataset.vocab_size = dataset.tokenizer->vocab_size();
    const std::vector<int32_t> ids = {3, 0, 255, 65, 3, 9, 1};
    dataset.train = std::make_shared<PackedTokens>(ids, std::vector<uint64_t>{0, 4},
                                                   std::vector<uint8_t>{0, 1, 1, 0, 0, 1, 1});
    Share(options, counts, &dataset);
    return dataset;
  }

  int encoded_ = 0;
  int64_t count_ = 0;
};

TEST_F(SharedDatasetsTest, TextsAreTheSameForAll) {
  std::string text, rows;
  for (int i = 0; i < 60; ++i) {
    text += StrCat("Line ", i, ", größer.\n");
    rows += StrCat("{\"text\": \"Document ", i, i % 7 == 0 ? " \\ud800" : "", "\"}\n");
  }
  WriteText(path_, text);
  const std::string rows_path = folder_ + "/rows.jsonl", hidden = folder_ + "-elsewhere";
  WriteText(rows_path, rows);
  const std::vector<DatasetOptions> all = {
      {.path = ""},
      {.path = path_},
      {.path = path_, .tokenizer = "byte", .val_fraction = 0},
      {.path = rows_path},
      {.path = rows_path, .tokenizer = "byte", .document_mask = true},
      {.path = "", .mix = StrCat(path_, ":1,", rows_path, ":2"), .tokenizer = "byte"}};
  for (DatasetOptions options : all) {
    const Dataset alone = OpenDataset(options);
    options.shared = std::make_shared<SharedDatasets>();
    const Dataset first = OpenDataset(options);
    EXPECT_EQ(options.shared->links.size(), options.mix.empty() ? 1 : 2);
    const auto shared = options.shared;
    options.shared = std::make_shared<SharedDatasets>();
    *options.shared = {.shares = false, .links = shared->links};
    std::filesystem::rename(folder_, hidden);  // nothing is read
    const Dataset second = OpenDataset(options);
    std::filesystem::rename(hidden, folder_);
    ExpectSame(first, alone);
    ExpectSame(second, alone);
    EXPECT_EQ(second.mixture_paths, alone.mixture_paths);
  }
}

TEST_F(SharedDatasetsTest, AreEncodedOnceAndOutliveWhoMadeThem) {
  std::optional<SharedDatasets> first(std::in_place);
  const Dataset made = Encode(&*first);
  std::vector<std::string> links = first->links;
  ASSERT_EQ(links.size(), 1u);
  // What other machines say leads nowhere, or to something else.
  links.insert(links.begin(), {"", "x", "/proc/1/fd/0 /dev/null", links[0] + "x"});
  SharedDatasets others = {.shares = false, .links = links};
  count_ = 0;
  const Dataset mapped = Encode(&others);
  EXPECT_EQ(encoded_, 1);
  EXPECT_EQ(count_, 7);
  ExpectSame(mapped, made);
  Encode(&others, "another path");
  EXPECT_EQ(encoded_, 2);
  EXPECT_EQ(others.links, links) << "it shares nothing itself";
  first.reset();
  ExpectSame(mapped, made);
  Encode(&others);
  EXPECT_EQ(encoded_, 3) << "the link is gone";
}

TEST_F(SharedDatasetsTest, AreGoneWithAProcessThatIsKilled) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    SharedDatasets first;
    const Dataset made = Encode(&first);
    const std::string link = first.links.at(0);
    if (write(ends[1], link.data(), link.size()) < 0) _exit(1);
    for (;;) pause();
  }
  std::string link(1000, '\0');
  link.resize(static_cast<size_t>(std::max<ssize_t>(0, read(ends[0], link.data(), link.size()))));
  SharedDatasets others = {.shares = false, .links = {link}};
  const Dataset mapped = Encode(&others);
  EXPECT_EQ(encoded_, 0);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  const Dataset own = Encode(&others);
  EXPECT_EQ(encoded_, 1);
  ExpectSame(mapped, own);
  for (const int end : ends) close(end);
}

TEST_F(SharedDatasetsTest, WithoutMemoryEachEncodesForItself) {
  for (const char* plan : {"enospc@1", "enospc@2"}) {
    SharedDatasets first;
    FaultInjector injector(FaultPlan::Parse(plan));
    const ScopedFaultInjector scope(&injector);
    EXPECT_EQ(All(*Encode(&first).train).size(), 7u);
    EXPECT_EQ(injector.operations(), plan[7] - '0');
    EXPECT_TRUE(first.links.empty());
  }
}

}  // namespace
}  // namespace lockstep::data
