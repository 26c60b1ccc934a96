#include "data/text/document_reader.h"

#include <fcntl.h>
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <random>

#include "core/error.h"
#include "core/io/json.h"
#include "core/io/sha256.h"
#include "data/text/text_files.h"
#include "data/text/text_parts.h"
#include "tests/data/compressed_files.h"
#include "tests/data/data_test_util.h"

namespace lockstep::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

struct Found {
  std::vector<std::string> texts;
  std::vector<TextPosition> positions;
  int64_t bad_utf8 = 0;
};

Found ReadAll(const std::vector<std::string>& files, const TextOptions& options = {},
              TextPosition start = {}) {
  DocumentReader reader(files, options, start);
  Found found;
  for (RawDocument document; reader.Next(&document);) {
    found.positions.push_back(document.position);
    DocumentText text = TextOf(document, files, options);
    found.texts.push_back(std::move(text.text));
    found.bad_utf8 += text.bad_utf8;
  }
  return found;
}

std::string JsonLine(const std::string& text) {
  return Json{{"id", {1, "text", {{"text", "no"}}}}, {"text", text}}.dump() + "\n";
}

// Some short, some longer than the reader's buffer.
std::vector<std::string> RandomTexts(int count) {
  std::mt19937 random(7);
  std::vector<std::string> texts;
  for (int i = 0; i < count; ++i) {
    std::string text = "é\"\\" + std::to_string(i);
    const size_t size = i % 10 == 3 ? 300000 + random() % 300000 : random() % 5000;
    while (text.size() < size) text += "\nab 中"[random() % 4 == 0 ? 0 : 1 + random() % 3];
    texts.push_back(text);
  }
  return texts;
}

TEST(DocumentReader, AJsonArrayIsNoJsonLines) {
  const std::string folder = TestFolder();
  for (const char* text : {"[{\"text\": \"a\"}]", "\n  [\n  {\"text\": \"a\"}\n]\n"}) {
    WriteText(folder + "/a.json", text);
    EXPECT_THAT(MessageOf<InputError>([&] { ReadAll({folder + "/a.json"}); }),
                AllOf(HasSubstr("/a.json: this is one JSON array"), HasSubstr("jq -c '.[]'")));
    WriteText(folder + "/a.txt", text);
    EXPECT_THAT(ReadAll({folder + "/a.txt"}).texts, ElementsAre(text));
  }
}

// Whoever forgets data.type must not train on braces and keys.
TEST(DocumentReader, JsonLinesWithoutTheirNameAreRefused) {
  const std::string folder = TestFolder();
  const std::string row = "{\"text\": \"a\", \"n\": {\"m\": [1]}}";
  const std::string long_row = "{ \"text\": \"" + std::string(100'000, 'a') + "\"}\n";
  const auto message = [&](const std::string& name, const std::string& contents,
                           const TextOptions& options = {}) {
    WriteText(folder + "/" + name, contents);
    return MessageOf<InputError>([&] { ReadAll({folder + "/" + name}, options); });
  };
  const std::string malformed = "{\"t\": \"\xff\\ud800\"}";
  for (const std::string& text : {row, row + "\n" + row, malformed, "\n \r\n" + row + "\r\nx",
                                  "\xef\xbb\xbf" + row, long_row}) {
    for (const bool any_bytes : {false, true}) {
      EXPECT_THAT(message("rows", text, {.any_bytes = any_bytes}),
                  AllOf(HasSubstr("/rows: its first line looks like a JSON object"),
                        HasSubstr("--data.type=jsonl"), HasSubstr("--data.type=text")));
    }
    EXPECT_THAT(message("rows.data.gz", GzipOf(text)), HasSubstr("--data.type=jsonl"));
    EXPECT_THAT(message("rows", text, {.type_advice = {"ask its author", "sleep"}}),
                AllOf(HasSubstr("ask its author, or sleep"), Not(HasSubstr("--data."))));
    // As the name or the option says.
    EXPECT_EQ(message("rows.txt", text), "no error");
    EXPECT_EQ(message("rows", text, {.type = "text"}), "no error");
  }
  for (const std::string array : {"[{\"text\": \"a\"},\n{}]", "[\n  {\n \"text\": 1}]"}) {
    EXPECT_THAT(message("array", array),
                AllOf(HasSubstr("like a JSON array"), HasSubstr("--data.type=jsonl")));
  }
  EXPECT_EQ(message("notes", "[1] A text.\n{x}"), "no error");
  // Before anything is read.
  WriteText(folder + "/a.txt", "text");
  EXPECT_THAT(MessageOf<InputError>([&] {
                DocumentReader({folder + "/a.txt", folder + "/rows"}, {});
              }),
              HasSubstr("looks like a JSON object"));
  EXPECT_EQ(message("rows", row + "\n" + row, {.type = "jsonl"}), "no error");
  for (const std::string& text :
       {"text\n" + row, row + " and more", std::string("{\n  \"text\": 1\n}"), std::string("[1]"),
        std::string("{}"), std::string("{"), std::string(), "{" + std::string(100'000, 'a')}) {
    EXPECT_EQ(message("prose", text), "no error") << Quoted(text.substr(0, 80));
  }
}

// Nor whoever has a table on commas and quotes.
TEST(DocumentReader, TablesAreNoText) {
  const std::string folder = TestFolder(), csv = "id,text\n1,\"a, b\"\n";
  const auto message = [&](const std::string& name, const std::string& contents,
                           const TextOptions& options = {}) {
    WriteText(folder + "/" + name, contents);
    return MessageOf<InputError>([&] { ReadAll({folder + "/" + name}, options); });
  };
  EXPECT_THAT(message("a.csv", csv),
              AllOf(HasSubstr("/a.csv: this has the name of a table (CSV)"),
                    HasSubstr("mlr -S --icsv --ojsonl cat '" + folder + "/a.csv' > rows.jsonl"),
                    HasSubstr("--data.field"), HasSubstr("--data.type=text")));
  EXPECT_THAT(message("a.tsv.gz", GzipOf(csv)),
              HasSubstr("zcat '" + folder + "/a.tsv.gz' | mlr -S --itsv --ojsonl cat > rows"));
  EXPECT_THAT(message("a.csv.zst", ZstdOf(csv), {.type_advice = {"weep", "ask its author"}}),
              AllOf(HasSubstr("zstdcat '"), HasSubstr(", or ask its author"),
                    Not(HasSubstr("weep")), Not(HasSubstr("--data.type"))));
  for (const auto& [name, reader] :
       {std::pair("a.parquet", "from_parquet"), std::pair("a.arrow", "from_file")}) {
    EXPECT_THAT(message(name, "PAR1\x15\x04"),
                AllOf(HasSubstr(StrCat("Dataset.", reader, "('", folder, "/", name,
                                       "').to_json('rows.jsonl')")),
                      Not(HasSubstr("--data.type"))));
  }
  // As the option says, and text about tables.
  EXPECT_EQ(message("a.csv", csv, {.type = "text"}), "no error");
  EXPECT_EQ(message("a.csv.txt", csv), "no error");
  EXPECT_EQ(message("csv", csv), "no error");
  EXPECT_THAT(message("a.parquet", "PAR1\x15\x04", {.type = "text"}),
              AllOf(HasSubstr("a Parquet file"), HasSubstr("from_parquet")));
}

TEST(DocumentReader, FormatsGiveTheSameDocuments) {
  const std::string folder = TestFolder();
  const std::vector<std::string> texts = RandomTexts(40);
  std::string lines[3];
  for (size_t i = 0; i < texts.size(); ++i) lines[i * 3 / texts.size()] += JsonLine(texts[i]);
  lines[2].pop_back();  // the last line need not end
  const std::string all = lines[0] + lines[1] + "\n \r\n" + lines[2];
  const std::string gap = "\n \r\n";
  WriteText(folder + "/a.jsonl", all);
  WriteText(folder + "/bom.ndjson", "\xef\xbb\xbf" + all);
  WriteText(folder + "/b.json.gz", GzipOf(lines[0]) + GzipOf("") + GzipOf(lines[1] + gap) +
                                       GzipOf(lines[2]) + std::string(1000, '\0'));
  WriteText(folder + "/c.jsonl.zst", SkippableFrame("seek table") + ZstdOf(lines[0]) +
                                         ZstdOf(lines[1] + gap, 10) + SkippableFrame("") +
                                         ZstdOf(lines[2]));
  const Found want = ReadAll({folder + "/a.jsonl"});
  EXPECT_EQ(want.texts, texts);
  EXPECT_EQ(want.bad_utf8, 0);
  for (const char* name : {"/bom.ndjson", "/b.json.gz", "/c.jsonl.zst"}) {
    const Found found = ReadAll({folder + name});
    EXPECT_EQ(found.texts, texts) << name;
    EXPECT_EQ(found.positions, want.positions) << name;
  }
}

TEST(DocumentReader, UnitsOfText) {
  const std::string folder = TestFolder();
  const std::string file = folder + "/a.txt";
  WriteText(file, "one\ntwo\n\nthree\n\n\n\nfour\r\n");
  EXPECT_THAT(ReadAll({file}).texts, ElementsAre("one\ntwo\n\nthree\n\n\n\nfour\r\n"));
  EXPECT_THAT(ReadAll({file}, {.unit = DocumentUnit::kParagraph}).texts,
              ElementsAre("one\ntwo", "three", "four"));
  EXPECT_THAT(ReadAll({file}, {.unit = DocumentUnit::kLine}).texts,
              ElementsAre("one", "two", "three", "four"));
  EXPECT_THAT(MessageOf<InputError>([&] { ReadAll({file}, {.type = "jsonl"}); }),
              HasSubstr("a.txt:1: not valid JSON"));
  WriteText(folder + "/lines.txt", JsonLine("é"));
  EXPECT_THAT(ReadAll({folder + "/lines.txt"}, {.type = "jsonl"}).texts, ElementsAre("é"));
  EXPECT_THROW(ReadAll({file}, {.type = "xml"}), InputError);
}

TEST(DocumentReader, LineEndsAndBlankLines) {
  const std::string file = TestFolder() + "/a.txt";
  const auto texts = [&](const std::string& text, DocumentUnit unit) {
    WriteText(file, text);
    return ReadAll({file}, {.unit = unit}).texts;
  };
  const auto paragraphs = [&](const std::string& text) {
    return texts(text, DocumentUnit::kParagraph);
  };
  for (const char* end : {"\n", "\r\n"}) {
    for (int blank = 1; blank <= 5; ++blank) {
      for (const char* space : {"", " ", "\t  "}) {
        std::string gap;
        for (int i = 0; i < blank; ++i) gap += StrCat(space, end);
        for (const std::string& text :
             {StrCat(gap, " alpha", end, "a", end, gap, "beta", end, gap, gap),
              StrCat(" alpha", end, "a", end, gap, "beta")}) {
          EXPECT_THAT(paragraphs(text), ElementsAre(" alpha\na", "beta")) << Quoted(text);
        }
      }
    }
    const std::string lines = StrCat("one", end, end, " two\rtwo ", end, "three");
    EXPECT_THAT(texts(lines, DocumentUnit::kLine), ElementsAre("one", " two\rtwo ", "three"));
    EXPECT_THAT(texts(lines, DocumentUnit::kFile), ElementsAre(lines));
  }
  EXPECT_THAT(paragraphs(" \n\n\r\n"), ElementsAre());
  // The limit is that of the paragraph, not of the empty lines before it.
  WriteText(file, std::string(1000, '\n') + "123\n456\n\n1234\n5678");
  EXPECT_THAT(MessageOf<InputError>([&] {
                ReadAll({file}, {.unit = DocumentUnit::kParagraph, .max_document_bytes = 7});
              }),
              AllOf(HasSubstr("a.txt, paragraph 2"), HasSubstr("more than 7 bytes")));
}

TEST(DocumentReader, ResumesAtAnyDocument) {
  const std::string folder = TestFolder();
  const std::vector<std::string> texts = RandomTexts(30);
  std::string lines;
  for (const std::string& text : texts) lines += JsonLine(text) + "\n";
  WriteText(folder + "/1.jsonl.zst", ZstdOf(lines));
  WriteText(folder + "/2.txt", "text");
  WriteText(folder + "/3.jsonl", lines);
  const std::vector<std::string> files = ListTextFiles(std::vector{folder});
  const Found all = ReadAll(files);
  ASSERT_EQ(all.texts.size(), 61u);
  for (size_t i = 0; i < all.texts.size(); ++i) {
    const Found rest = ReadAll(files, {}, all.positions[i]);
    ASSERT_EQ(rest.texts, std::vector(all.texts.begin() + i, all.texts.end())) << i;
    ASSERT_EQ(rest.positions, std::vector(all.positions.begin() + i, all.positions.end())) << i;
  }
  DocumentReader reader(files, {});
  for (RawDocument document; reader.Next(&document);) {
  }
  ASSERT_EQ(reader.finished().size(), 3u);
  EXPECT_EQ(reader.finished()[0].sha256, Sha256Of(ZstdOf(lines)));
  EXPECT_EQ(reader.finished()[2].bytes, static_cast<int64_t>(lines.size()));
  EXPECT_EQ(ReadAll(files, {}, reader.position()).texts.size(), 0u);
  std::string text;
  for (size_t i = 0; i < texts.size(); ++i) {
    text +=
        std::string(i % 4, '\n') + texts[i].substr(0, 20000) + (i % 2 == 0 ? "\r\n \r\n" : "\n");
  }
  WriteText(folder + "/2.txt", text);
  for (const DocumentUnit unit : {DocumentUnit::kParagraph, DocumentUnit::kLine}) {
    const TextOptions options{.unit = unit};
    const Found cut = ReadAll({folder + "/2.txt"}, options);
    ASSERT_GT(cut.texts.size(), 20u);
    for (size_t i = 0; i < cut.texts.size(); i += 1 + i / 4) {
      const Found rest = ReadAll({folder + "/2.txt"}, options, cut.positions[i]);
      ASSERT_EQ(rest.texts, std::vector(cut.texts.begin() + i, cut.texts.end())) << i;
      ASSERT_EQ(rest.positions, std::vector(cut.positions.begin() + i, cut.positions.end())) << i;
    }
  }
}

// Pieces of a file that is one document, by the rule alone.
std::vector<std::string> PiecesByTheRule(std::string_view text, size_t bytes) {
  std::vector<std::string> pieces;
  while (!text.empty()) {
    pieces.emplace_back(text.substr(0, FindTextCut(text, bytes, text.size())));
    text.remove_prefix(pieces.back().size());
  }
  return pieces;
}

TEST(DocumentReader, LargeFilesComeInPieces) {
  const std::string folder = TestFolder();
  std::string text;
  for (const std::string& part : RandomTexts(40)) text += part;
  WriteText(folder + "/1.txt", "\xef\xbb\xbf" + text);
  WriteText(folder + "/2.txt", "short");
  WriteText(folder + "/3.txt.zst", ZstdOf(text));
  const std::vector<std::string> files = ListTextFiles(std::vector{folder});
  for (const int64_t bytes : {1000, 262144, 400000}) {
    TextOptions options{.max_document_bytes = 1 << 19, .piece_bytes = bytes};
    const Found all = ReadAll(files, options);
    const std::vector<std::string> want = PiecesByTheRule(text, bytes);
    const size_t n = want.size();
    ASSERT_GT(n, 3u);
    ASSERT_EQ(all.texts.size(), 2 * n + 1);
    EXPECT_EQ(std::vector(all.texts.begin(), all.texts.begin() + n), want);
    EXPECT_EQ(all.texts[n], "short");
    EXPECT_EQ(std::vector(all.texts.begin() + n + 1, all.texts.end()), want);
    EXPECT_EQ(all.positions[n - 1], (TextPosition{0, 0, static_cast<int64_t>(n) - 1}));
    EXPECT_EQ(all.positions[n], (TextPosition{1, 0, 0}));
    for (size_t i = 0; i < all.texts.size(); i += 1 + i / 4) {
      const Found rest = ReadAll(files, options, all.positions[i]);
      ASSERT_EQ(rest.texts, std::vector(all.texts.begin() + i, all.texts.end())) << i;
      ASSERT_EQ(rest.positions, std::vector(all.positions.begin() + i, all.positions.end())) << i;
    }
    DocumentReader reader({folder + "/1.txt"}, options);
    std::vector<bool> last;
    for (RawDocument document; reader.Next(&document);) last.push_back(document.last);
    std::vector<bool> only_the_last(n);
    only_the_last.back() = true;
    EXPECT_EQ(last, only_the_last);
    EXPECT_EQ(reader.position(), (TextPosition{1, 0, 0}));
  }
  // Nothing to cut at.
  WriteText(folder + "/2.txt", std::string(700, '.') + "a b");
  EXPECT_THAT(
      MessageOf<InputError>(
          [&] { ReadAll({folder + "/2.txt"}, {.max_document_bytes = 600, .piece_bytes = 100}); }),
      AllOf(HasSubstr("2.txt: no place to cut it, such as a space after a word, within 600"),
            HasSubstr("--data.max_document_bytes")));
  EXPECT_EQ(ReadAll({folder + "/2.txt"}, {.max_document_bytes = 703, .piece_bytes = 100}).texts,
            (std::vector<std::string>{std::string(700, '.') + "a", " b"}));
}

TEST(DocumentReader, StandardInput) {
  const std::string file = TestFolder() + "/piped";
  WriteText(file, GzipOf(JsonLine("one") + JsonLine("two")));
  const int saved = dup(STDIN_FILENO), fd = open(file.c_str(), O_RDONLY);
  dup2(fd, STDIN_FILENO);
  const Found found = ReadAll({"-"}, {.type = "jsonl"});
  lseek(fd, 0, SEEK_SET);
  EXPECT_THAT(MessageOf<InputError>([] { ReadAll({"-"}); }),
              AllOf(HasSubstr("standard input: its first line looks like a JSON object"),
                    HasSubstr("--data.type=jsonl")));
  dup2(saved, STDIN_FILENO);
  close(saved);
  close(fd);
  EXPECT_THAT(found.texts, ElementsAre("one", "two"));
}

TEST(DocumentReader, MalformedUtf8IsReplacedAndCounted) {
  const std::string folder = TestFolder();
  WriteText(folder + "/a.jsonl",
            "{\"text\": \"x\xff\xc3\"}\n{\"text\": \"\\ud83d\\ude00 \\ud83d\"}\n");
  WriteText(folder + "/b.txt", "\x80");
  const Found found = ReadAll(ListTextFiles(std::vector{folder}));
  EXPECT_THAT(found.texts, ElementsAre("x\uFFFD\uFFFD", "\U0001F600 \uFFFD", "\uFFFD"));
  EXPECT_EQ(found.bad_utf8, 4);
}

// As a byte tokenizer takes it; JSONL is UTF-8 all the same.
TEST(DocumentReader, AnyBytesStayAsTheyAre) {
  using std::string_literals::operator""s;
  const std::string folder = TestFolder();
  const std::string bytes = "\xef\xbb\xbf" + std::string(9, '\xff') + "\0PK\xc3\r\n"s;
  WriteText(folder + "/a.txt", bytes);
  WriteText(folder + "/b.txt.gz", GzipOf(bytes));
  WriteText(folder + "/c.jsonl", "{\"text\": \"x\xff\"}\n");
  const Found found = ReadAll(ListTextFiles(std::vector{folder}), {.any_bytes = true});
  EXPECT_THAT(found.texts, ElementsAre(bytes, bytes, "x\uFFFD"));
  EXPECT_EQ(found.bad_utf8, 1);
}

TEST(DocumentReader, WhatIsNotUtf8TextIsRefused) {
  using std::string_literals::operator""s;
  const std::string folder = TestFolder();
  const auto message = [&](const std::string& name, const std::string& contents,
                           const TextOptions& options = {}) {
    WriteText(folder + "/" + name, contents);
    return MessageOf<InputError>([&] { ReadAll({folder + "/" + name}, options); });
  };
  std::string wide;
  for (const char c : "In most languages every other byte is zero. "s) wide += {c, '\0'};
  for (const DocumentUnit unit : {DocumentUnit::kFile, DocumentUnit::kLine}) {
    EXPECT_THAT(message("a.txt", "\xff\xfe" + wide, {.unit = unit}),
                AllOf(HasSubstr("a.txt: this is utf-16"), HasSubstr("iconv -f utf-16 ")));
    EXPECT_THAT(message("a.txt", wide, {.unit = unit}), HasSubstr("iconv -f utf-16le"));
  }
  EXPECT_THAT(message("a.jsonl", "\xff\xfe" + wide), HasSubstr("a.jsonl: this is utf-16"));
  EXPECT_THAT(message("a.txt.gz", GzipOf(wide)), HasSubstr("a.txt.gz: this is utf-16le"));
  EXPECT_THAT(message("a.txt", "PAR1\x15\x04"), AllOf(HasSubstr("Parquet"), HasSubstr("JSONL")));
  EXPECT_THAT(message("a.txt", "PK\x03\x04\x14"), AllOf(HasSubstr("zip"), HasSubstr("unpack")));
  EXPECT_THAT(message("a.txt", "%PDF-1.7\n"), AllOf(HasSubstr("PDF"), HasSubstr("pdftotext")));
  EXPECT_THAT(message("a.txt",
                      "\xfd"
                      "7zXZ\0"s),
              HasSubstr("unxz"));
  EXPECT_THAT(message("a.txt", "text\0text"s),
              AllOf(HasSubstr("a.txt: byte 4 is NUL"), HasSubstr("leave it out")));
  // Beyond the beginning, too.
  const std::string lines(2'000'000, '\n');
  EXPECT_THAT(message("a.txt", lines + "a\0"s), HasSubstr("a.txt: byte 2000001 is NUL"));
  WriteText(folder + "/a.txt", std::string(70'000, 'a') + " " + std::string(1000, 'b') + "\0"s);
  EXPECT_THAT(MessageOf<InputError>([&] { ReadAll({folder + "/a.txt"}, {.piece_bytes = 500}); }),
              HasSubstr("a.txt: byte 71001 is NUL"));
  EXPECT_THAT(message("a.txt", lines + "a\0"s, {.unit = DocumentUnit::kLine}),
              HasSubstr("a.txt:2000001: byte 1 is NUL"));
  std::string latin1;
  for (int i = 0; i < 90; ++i) latin1 += i % 4 == 0 ? "caf\xe9\n" : "and more of it\n";
  EXPECT_THAT(message("a.txt", latin1, {.unit = DocumentUnit::kLine}),
              AllOf(HasSubstr("a.txt: "), HasSubstr("iconv -f latin1")));
  EXPECT_THAT(
      message("a.jsonl", "{\"text\": \"a\"}\n{\"text\": \"" + std::string(9, '\xe9') + "\"}\n"),
      AllOf(HasSubstr("a.jsonl:2: "), HasSubstr("iconv -f latin1")));
  // Text about such files, and a few bad bytes, are none of it.
  for (const char* text : {"PKU, PAR 1, a %PDF", "x\xff", "\xc3\xa9t\xc3"}) {
    EXPECT_EQ(message("a.txt", text), "no error") << text;
  }
}

TEST(DocumentReader, LargeWindowsAreReadAndTold) {
  const std::string folder = TestFolder();
  WriteText(folder + "/a.txt.zst", ZstdOf("small ") + ZstdOf("large", 28) + ZstdOf(" small", 29));
  std::vector<std::string> told;
  const TextOptions options{.warn = [&](const std::string& text) { told.push_back(text); }};
  EXPECT_THAT(ReadAll({folder + "/a.txt.zst"}, options).texts, ElementsAre("small large small"));
  EXPECT_THAT(told, ElementsAre(AllOf(HasSubstr("a.txt.zst"), HasSubstr("128 MiB"))));
}

TEST(DocumentReader, DamagedFilesAreErrors) {
  const std::string folder = TestFolder();
  std::string text;
  for (int i = 0; i < 5000; ++i) text += std::to_string(i * i);
  const std::string gz = GzipOf(text), zst = ZstdOf(text);
  std::string flipped_gz = gz, flipped_zst = zst;
  flipped_gz[gz.size() / 2] ^= 0x55;
  flipped_zst[zst.size() / 2] ^= 0x55;
  const auto message = [&](const std::string& name, std::string_view contents,
                           const TextOptions& options = {}) {
    WriteText(folder + "/" + name, contents);
    return MessageOf<InputError>([&] { ReadAll({folder + "/" + name}, options); });
  };
  EXPECT_THAT(message("a.gz", gz.substr(0, gz.size() / 2)), HasSubstr("truncated"));
  EXPECT_THAT(message("a.gz", gz.substr(0, gz.size() - 1)), HasSubstr("truncated"));
  EXPECT_THAT(message("a.gz", gz + gz.substr(0, 5)), HasSubstr("truncated"));
  EXPECT_THAT(message("a.gz", gz + "garbage"), HasSubstr("damaged gzip"));
  EXPECT_THAT(message("a.gz", flipped_gz), HasSubstr("damaged gzip"));
  EXPECT_THAT(message("a.zst", zst.substr(0, zst.size() - 1)), HasSubstr("truncated"));
  EXPECT_THAT(message("a.zst", zst + zst.substr(0, 3)), HasSubstr("truncated"));
  EXPECT_THAT(message("a.zst", zst + "garbage"), HasSubstr("damaged Zstandard"));
  EXPECT_THAT(message("a.txt.gz", "plain"), HasSubstr("name promises"));
  EXPECT_THAT(message("a.txt.zst", ""), HasSubstr("empty"));
  EXPECT_THAT(message("a.jsonl", "{\"text\": \"\"}\n\n{\"text\": 3}"),
              AllOf(HasSubstr("a.jsonl:3"), HasSubstr("must be a string")));
  EXPECT_THAT(message("a.jsonl", "{\"content\": \"x\"}"), HasSubstr("no field \"text\""));
  EXPECT_THAT(message("a.jsonl", "{}", {.field = "content"}), HasSubstr("no field \"content\""));
  EXPECT_THAT(
      message("b.txt", "12345\n123456\n", {.unit = DocumentUnit::kLine, .max_document_bytes = 5}),
      AllOf(HasSubstr("b.txt:2"), HasSubstr("more than 5 bytes")));
  EXPECT_THAT(message("b.txt", "123456", {.max_document_bytes = 5}),
              AllOf(HasSubstr("more than 5 bytes"), HasSubstr("paragraph")));
  EXPECT_THAT(message("b.txt", "123456",
                      {.max_document_bytes = 5, .large_document_advice = "ask its author"}),
              AllOf(HasSubstr("If so, ask its author"), Not(HasSubstr("--data."))));
}

TEST(DocumentReader, HostileFilesTakeBoundedMemory) {
  const std::string folder = TestFolder();
  const std::string zeros(1 << 20, '0');
  const std::string gz = GzipOf(zeros), zst = ZstdOf(zeros);
  std::string bomb_gz, bomb_zst, short_lines;
  for (int i = 0; i < 1024; ++i) bomb_gz += gz, bomb_zst += zst;  // 1 GiB
  for (int i = 0; i < 100; ++i) short_lines += std::string(10000, 'x') + "\n";
  std::string many_gz;
  const std::string lines_gz = GzipOf(short_lines);
  for (int i = 0; i < 100; ++i) many_gz += lines_gz;  // 100 MB
  WriteText(folder + "/bomb.jsonl.gz", bomb_gz);
  WriteText(folder + "/bomb.txt.zst", bomb_zst);
  WriteText(folder + "/deep.jsonl", "{\"text\": " + std::string(4 << 20, '[') + "\n");
  WriteText(folder + "/deeper.jsonl", "{\"a\": " + std::string(4 << 20, '['));
  WriteText(folder + "/many.txt.gz", many_gz);
  const TextOptions options{.max_document_bytes = 8 << 20};
  const auto refused = [&](const std::string& name, const std::string& reason) {
    const int64_t growth = GrowthKib([&] {
      const std::string message =
          MessageOf<InputError>([&] { ReadAll({folder + "/" + name}, options); });
      LS_INVARIANT(message.find(reason) != std::string::npos, message);
      LS_INVARIANT(message.size() < 1000);
    });
    EXPECT_THAT(growth, GrewLessThan(48 << 10)) << name;
  };
  refused("bomb.jsonl.gz", "more than 8388608 bytes");
  refused("bomb.txt.zst", "more than 8388608 bytes");
  refused("deep.jsonl", "must be a string");
  refused("deeper.jsonl", "nested deeper");
  const int64_t growth = GrowthKib([&] {
    DocumentReader reader({folder + "/many.txt.gz"}, {.unit = DocumentUnit::kLine});
    int64_t count = 0;
    for (RawDocument document; reader.Next(&document);) ++count;
    LS_INVARIANT(count == 10000);
  });
  EXPECT_THAT(growth, GrewLessThan(8 << 10));
}

}  // namespace
}  // namespace lockstep::data
