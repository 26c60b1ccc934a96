// Conversations with a model: what is kept from turn to turn, what is forgotten, and hundreds of
// turns.
#include "models/sample/chat.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <cstdlib>

#include "core/allocator.h"
#include "core/io/json.h"
#include "data/tokenizer/training/bpe_trainer.h"
#include "models/gpt/hf/hf_format.h"
#include "models/sample/sampled_model.h"
#include "tests/models/sample/dequantize.h"
#include "tests/models/spread_weights.h"
#include "tests/models/temp_folder.h"
#include "tests/process_state.h"
#include "tests/sanitized.h"

namespace lockstep::models {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// Tokens 0 to 2 are special, and 3 to 96 the printable characters but for the space: a model of 97
// tokens writes only these, and so do the template and the messages.
constexpr int64_t kVocabulary = 97;
constexpr std::string_view kTemplate =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + ':' + m.content + '<|im_end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant:' }}{% endif %}";

struct Transcript {
  std::string answers, messages;  // stdout and stderr
  GenerateStats stats;
};

class ChatTest : public testing::Test {
 protected:
  ChatTest() : folder_("chat") {
    WriteFileAtomically(folder_.Path("chat_template.jinja"), std::string(kTemplate));
    data::BpeTrainerOptions options{.allow_fewer = true};
    options.special_tokens = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    options.vocab_size = 3 + 256;
    tokenizer_ = data::Tokenizer::FromJson(
        data::ToHuggingFaceJson(data::TrainBpe({}, options), data::Gpt2PreTokenizer(), nullptr),
        "the test's tokenizer");
  }

  static std::unique_ptr<Gpt> MakeModel(int64_t block_size, DType dtype) {
    auto model = std::make_unique<Gpt>(GptConfig{.vocab_size = kVocabulary,
                                                 .block_size = block_size,
                                                 .n_layer = 2,
                                                 .n_head = 2,
                                                 .n_embd = 16,
                                                 .position = Position::kRope});
    model->Materialize(kCpu, 3, dtype);
    test::SpreadWeights(*model);
    return model;
  }

  Transcript Play(Gpt& model, int64_t turns, const GenerateOptions& generate,
                  const std::function<std::string(int64_t turn)>& message,
                  const std::string& system = "") {
    char* text = nullptr;
    size_t size = 0;
    std::FILE* const to = open_memstream(&text, &size);
    Transcript transcript;
    testing::internal::CaptureStderr();
    int64_t turn = 0;
    try {
      transcript.stats = Chat(model, tokenizer_,
                              {.folder = folder_.path(),
                               .system = system,
                               .generate = generate,
                               .next_message = [&]() -> std::optional<std::string> {
                                 if (turn == turns) return {};
                                 return message(turn++);
                               },
                               .to = to});
    } catch (...) {
      std::fclose(to);
      std::free(text);
      testing::internal::GetCapturedStderr();
      throw;
    }
    std::fclose(to);
    transcript.answers.assign(text, size);
    std::free(text);
    transcript.messages = testing::internal::GetCapturedStderr();
    return transcript;
  }

  static std::string Short(int64_t turn) { return "#" + std::to_string(turn) + "?"; }

  const test::TempFolder folder_;
  std::shared_ptr<const data::Tokenizer> tokenizer_;
};

int64_t Count(const std::string& text, const std::string& part) {
  int64_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// In f64, where the order of sums does not change which token is drawn; also after the conversation
// has outgrown the context, several times.
TEST_F(ChatTest, AnswersAreThoseOfComputingAnew) {
  const std::unique_ptr<Gpt> model = MakeModel(160, DType::kF64);
  const int64_t turns = test::kSanitized ? 12 : 40;
  for (const double temperature : {0.0, 1.0}) {
    GenerateOptions options{.tokens = 8, .temperature = temperature};
    const Transcript kept = Play(*model, turns, options, Short, "Be#brief.");
    options.kv_cache = false;
    const Transcript anew = Play(*model, turns, options, Short, "Be#brief.");
    EXPECT_EQ(kept.answers, anew.answers);
    EXPECT_EQ(Count(kept.answers, "\n"), turns);
    EXPECT_EQ(kept.messages, anew.messages);
    EXPECT_GE(Count(kept.messages, "what was said first is forgotten"), 2);
    EXPECT_LT(kept.stats.prompt_tokens, anew.stats.prompt_tokens / 2);
  }
}

// Until something is forgotten, each token of the conversation is computed once.
TEST_F(ChatTest, OnlyWhatIsNewIsComputed) {
  const std::unique_ptr<Gpt> model = MakeModel(1024, DType::kF64);
  const GenerateOptions options{.tokens = 8, .temperature = 1};
  // Enough room from the start: a cache that grows begins anew.
  const std::string first(500, '#');
  const auto message = [&](int64_t turn) { return turn == 0 ? first : Short(turn); };
  std::vector<int64_t> computed;
  for (const int64_t turns : {5, 6}) {
    const GenerateStats stats = Play(*model, turns, options, message).stats;
    computed.push_back(stats.prompt_tokens + stats.tokens);
  }
  // The last answer and its end, which was drawn but not computed; the next message, and what the
  // template puts around it.
  const int64_t around = std::ssize(std::string("[user:]<assistant:"));
  EXPECT_LE(computed[1] - computed[0], around + std::ssize(Short(5)) + options.tokens + 1);
  EXPECT_GE(computed[1] - computed[0], around + std::ssize(Short(5)));
}

// As the base of adapters: quantised as it is read.
TEST_F(ChatTest, ABaseOf4BitsAnswersAsItsDequantisedWeights) {
  const std::unique_ptr<Gpt> source = MakeModel(160, DType::kF32);
  const std::string folder = folder_.Path("model");
  WriteHfFolder(folder, ToHfConfig(source->config()), ToHfTensors(*source), int64_t{1} << 40);
  const auto load = [&](const std::string& base) {
    return LoadSampledModel(folder, base, nullptr, std::make_shared<dist::TensorRanks>(nullptr, 1),
                            kCpu);
  };
  const auto quantized = load("nf4"), plain = load("model");
  ASSERT_FALSE(nn::QuantizedLayers(*quantized).empty());
  const auto answers = [&](Gpt& model) {
    return Play(model, 6, {.tokens = 8, .temperature = 0}, Short).answers;
  };
  EXPECT_EQ(answers(*plain), answers(*source));
  CopyDequantized(*quantized, *plain);
  EXPECT_EQ(answers(*quantized), answers(*plain));
  EXPECT_NE(answers(*quantized), answers(*source)) << "the weights are not those of 4 bits";
}

TEST_F(ChatTest, SaysWhatItForgetsAndWhereTheContextEnds) {
  const std::unique_ptr<Gpt> model = MakeModel(64, DType::kF32);
  const GenerateOptions options{.tokens = 1000, .temperature = 1};
  const Transcript all = Play(*model, 3, options, [](int64_t turn) {
    return turn == 0 ? std::string(40, '#') : std::string("Hi");
  });
  EXPECT_THAT(all.messages,
              AllOf(HasSubstr("sample_gpt: the answer ends where the model's context of 64 tokens "
                              "does\n"),
                    HasSubstr("sample_gpt: the conversation is longer than the model's context of "
                              "64 tokens; what was said first is forgotten: 1 message and its "
                              "answer\n")));
  EXPECT_EQ(Count(all.answers, "\n"), 3);
}

// What was said before is not forgotten for a message that cannot be answered.
TEST_F(ChatTest, LeavesOutAMessageThatIsTooLong) {
  const std::unique_ptr<Gpt> model = MakeModel(64, DType::kF32);
  const GenerateOptions options{.tokens = 3, .temperature = 0};
  const std::vector<std::string> short_ones = {"Hi", "Oh"};
  const Transcript with = Play(*model, 3, options, [&](int64_t turn) {
    return turn == 1 ? std::string(64, '#') : short_ones[static_cast<size_t>(turn) / 2];
  });
  EXPECT_THAT(with.messages,
              AllOf(HasSubstr("tokens, but the model's context has 64 for it and the "
                              "answer: it is left out; say it in fewer words\n"),
                    Not(HasSubstr("forgotten"))));
  const Transcript without =
      Play(*model, 2, options, [&](int64_t turn) { return short_ones[static_cast<size_t>(turn)]; });
  EXPECT_EQ(with.answers, without.answers);
}

// Memory and threads stay as they are once the context has been full.
TEST_F(ChatTest, HundredsOfTurnsTakeNoMoreMemory) {
  const std::unique_ptr<Gpt> model = MakeModel(256, DType::kF32);
  const int64_t turns = test::kSanitized ? 120 : 600;
  int64_t tensors[2] = {}, heap[2] = {}, threads[2] = {};
  const Transcript all = Play(*model, turns, {.tokens = 6, .temperature = 1}, [&](int64_t turn) {
    // The most of the second sixth and of the last one.
    const int64_t sixth = 6 * turn / turns;
    if (sixth == 1 || sixth == 5) {
      const auto at = static_cast<size_t>(sixth / 5);
      tensors[at] = std::max(tensors[at], GetAllocator(kCpu).stats().live_bytes);
      heap[at] = std::max(heap[at], static_cast<int64_t>(mallinfo2().uordblks));
      threads[at] = test::ProcessStateOf().threads;
    }
    return Short(turn % 10);
  });
  EXPECT_EQ(Count(all.answers, "\n"), turns);
  EXPECT_GE(Count(all.messages, "what was said first is forgotten"), turns / 12);
  EXPECT_EQ(tensors[1], tensors[0]);
  EXPECT_EQ(threads[1], threads[0]);
  // What was printed is in memory, too.
  const auto printed = static_cast<int64_t>(2 * all.answers.size());
  if (!test::kSanitized) {
    EXPECT_LE(heap[1], heap[0] + printed + (16 << 10));
  }
}

}  // namespace
}  // namespace lockstep::models
