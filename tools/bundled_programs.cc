// All programs of the bundle in one, which thus contains the kernels only once. Runs the program by
// whose name it is called.
#include <cerrno>  // program_invocation_name
#include <cstdio>
#include <string>
#include <string_view>

int train_gpt_main(int argc, char** argv);
int sample_gpt_main(int argc, char** argv);
int bench_main(int argc, char** argv);
int gradcheck_main(int argc, char** argv);
int flight_main(int argc, char** argv);
int launch_main(int argc, char** argv);
int op_test_main(int argc, char** argv);

namespace {

struct Program {
  std::string_view name;
  int (*main)(int, char**);
};

constexpr Program kPrograms[] = {
    {"train_gpt", train_gpt_main}, {"sample_gpt", sample_gpt_main}, {"bench", bench_main},
    {"gradcheck", gradcheck_main}, {"launch", launch_main},         {"flight", flight_main},
    {"op_test", op_test_main},
};

}  // namespace

int main(int argc, char** argv) {
  static std::string path = argc > 0 ? argv[0] : "";
  const std::string name = path.substr(path.rfind('/') + 1);  // npos + 1 is 0
  // bundle_start.sh, in bin, starts this file in libexec: the commands that programs tell are the
  // former's.
  const std::string here = "/libexec/" + name;
  if (path.ends_with(here)) {
    path.replace(path.size() - here.size(), here.size(), "/bin/" + name);
    argv[0] = program_invocation_name = path.data();
  }
  for (const Program& program : kPrograms) {
    if (program.name == name) return program.main(argc, argv);
  }
  std::fprintf(stderr, "%s: there is no such program in this file; call it through a link named",
               name.c_str());
  for (const Program& program : kPrograms) {
    std::fprintf(stderr, " %.*s", static_cast<int>(program.name.size()), program.name.data());
  }
  std::fprintf(stderr, "\n");
  return 2;
}
