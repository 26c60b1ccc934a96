#include "models/evaluate/harness_tasks.h"

#include "core/error.h"
#include "core/io/file.h"
#include "models/evaluate/python_text.h"

namespace lockstep::models {
namespace {

using Kind = HarnessTask::Kind;
using Draw = HarnessTask::Draw;

// Rows from WikiHow have marks in square brackets.
std::string CleanHellaSwag(std::string_view text) {
  const std::string marked = Replace(Strip(text), " [title]", ". ");
  std::string out;
  for (size_t i = 0; i < marked.size(); ++i) {  // re.sub(r"\[.*?\]", "", ...)
    const size_t end = marked[i] == '[' ? marked.find_first_of("]\n", i) : std::string::npos;
    if (end != std::string::npos && marked[end] == ']') {
      i = end;
    } else {
      out += marked[i];
    }
  }
  return Replace(out, "  ", " ");
}

Example HellaSwag(const Row& row) {
  Example e;
  e.contexts = {CleanHellaSwag(row.Text("activity_label") + ": " + row.Text("ctx_a") + " " +
                               Capitalize(row.Text("ctx_b")))};
  for (const std::string& ending : row.Texts("endings", 2)) {
    e.continuations.push_back(CleanHellaSwag(ending));
  }
  e.gold = row.Index("label", std::ssize(e.continuations));
  return e;
}

Example Arc(const Row& row) {
  const Row choices = row.Object("choices");
  const std::vector<std::string> labels = choices.Texts("label"), texts = choices.Texts("text", 2);
  const std::string answer = row.Text("answerKey");
  const auto gold = std::find(labels.begin(), labels.end(), answer) - labels.begin();
  if (labels.size() != texts.size() || gold == std::ssize(labels)) {
    throw InputError(StrCat(row.place(), ": \"answerKey\" ", answer,
                            " must be one of the labels, of which each text has one"));
  }
  return {{"Question: " + row.Text("question") + "\nAnswer:"}, texts, gold};
}

Example Piqa(const Row& row) {
  return {{"Question: " + row.Text("goal") + "\nAnswer:"},
          {row.Text("sol1"), row.Text("sol2")},
          row.Index("label", 2)};
}

// The part up to the option is the context, which varies, and what follows it is scored (Trinh and
// Le, "A simple method for commonsense reasoning", 2018).
Example WinoGrande(const Row& row) {
  const std::string sentence = row.Text("sentence"), answer = row.Text("answer");
  const size_t blank = sentence.find('_');
  if (blank == std::string::npos) {
    throw InputError(StrCat(row.place(), ": \"sentence\" has no _ for the option"));
  }
  if (answer != "1" && answer != "2") {
    throw InputError(StrCat(row.place(), ": \"answer\" must be \"1\" or \"2\""));
  }
  const std::string before = sentence.substr(0, blank);
  return {{before + row.Text("option1"), before + row.Text("option2")},
          {std::string(Strip(std::string_view(sentence).substr(blank + 1)))},
          answer == "1" ? 0 : 1};
}

Example Lambada(const Row& row) {
  const std::string text = row.Text("text");
  const size_t space = text.rfind(' ');
  if (space == std::string::npos) {
    throw InputError(StrCat(row.place(), ": \"text\" must be several words"));
  }
  return {{text.substr(0, space)}, {text.substr(space)}};
}

Example Mmlu(const Row& row) {
  const std::vector<std::string> choices = row.Texts("choices", 4);
  std::string text(Strip(row.Text("question")));
  for (size_t i = 0; i < 4; ++i) text += StrCat("\n", "ABCD"[i], ". ", choices[i]);
  return {{text + "\nAnswer:"}, {"A", "B", "C", "D"}, row.Index("answer", 4)};
}

Example Gsm8k(const Row& row) {
  return {{"Question: " + row.Text("question") + "\nAnswer:"}, {row.Text("answer")}};
}

// How examples are drawn follows from which of its splits a task of the harness names.
constexpr HarnessTask kTasks[] = {
    {"hellaswag", Kind::kChoice, "validation", "train", Draw::kRandomLess, 0, true,
     "Rowan/hellaswag", "default", HellaSwag},
    {"arc_easy", Kind::kChoice, "test", "train", Draw::kRandom, 0, true, "allenai/ai2_arc",
     "ARC-Easy", Arc},
    {"arc_challenge", Kind::kChoice, "test", "train", Draw::kRandom, 0, true, "allenai/ai2_arc",
     "ARC-Challenge", Arc},
    {"piqa", Kind::kChoice, "validation", "train", Draw::kRandomLess, 0, true, "baber/piqa",
     "default", Piqa},
    {"winogrande", Kind::kChoice, "validation", "train", Draw::kRandomLess, 0, false,
     "allenai/winogrande", "winogrande_xl", WinoGrande},
    {"lambada_openai", Kind::kLastWord, "test", "test", Draw::kRandom, 0, false,
     "EleutherAI/lambada_openai", "default", Lambada},
    {"mmlu", Kind::kChoice, "test", "dev", Draw::kFirst, 0, false, "cais/mmlu", "all", Mmlu,
     [](const Row& row) { return row.Text("subject"); },
     [](const std::string& subject) {
       return "The following are multiple choice questions (with answers) about " +
              Replace(subject, "_", " ") + ".\n\n";
     }},
    {"gsm8k", Kind::kAnswer, "test", "train", Draw::kRandom, 5, false, "openai/gsm8k", "main",
     Gsm8k},
};

}  // namespace

std::span<const HarnessTask> HarnessTasks() { return kTasks; }

std::string PathOf(const HarnessTask& task, std::string_view split, const std::string& folder) {
  return JoinPath(folder, StrCat(task.name, "/", split, ".jsonl"));
}

std::string HowToWrite(const HarnessTask& task, std::string_view split, const std::string& folder) {
  const std::string path = PathOf(task, split, folder);
  return StrCat("python3 -c \"import os, datasets; os.makedirs('",
                JoinPath(folder, std::string(task.name)),
                "', exist_ok=True); datasets.load_dataset('", task.dataset, "', '", task.config,
                "', split='", split, "').to_json('", path, "')\"");
}

}  // namespace lockstep::models
