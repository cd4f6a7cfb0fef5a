# SPDX-License-Identifier: Apache-2.0
"""count-shell with made-up pairs."""
import pathlib
import subprocess
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/count-shell"

# Each line of code ends with the column that it belongs to: k, s, or r for the rest that is no shell.
GPU = r"""// SPDX-License-Identifier: Apache-2.0
// A { that nobody closes.
#include <aisp/pair.hpp>  //s

namespace aisp::ch07 {  //s
namespace {  //s

constexpr int threads = 256, limits[] = {1'000, 2'000};  //r
constexpr char brace = '{', *text = "\"}", *raw = R"(}")";  //r
template <int stages>  //r
struct Wide : Config<Shape{.stages = stages}> {};  //r
struct Twice {  //r
  float x;  //r
  __host__ __device__ float operator()() const { return 2 * x; }  //k
};  //r

/* A comment
   of two lines. */
template <class T>  //k
__device__ T twice(T x) {  //k

  // Not this line.
#pragma unroll  //k
  for (int i = 0; i < 1; ++i) x += x;  //k
  return x;  //k
}  //k
__global__ __launch_bounds__(threads) void box_kernel(float* x) { *x = twice(*x); }  //k
std::size_t rounded(std::size_t n) { return n / 2 * 2; }  //r

class Box final : public Workload {  //s
 public:  //s
  explicit Box(Setup& setup) : n_{rounded(64)},  //s
                               x_{setup.inout<float>(n_, {.name = "x"})} {}  //s
  Cost cost() const override { return {.bytes = 4}; }  //r
  void compute_reference(Launch&) override { expected_ = 2; }  //r
  double expected(std::size_t) const override {  //r
    return expected_;  //r
  }  //r
  void wide(Launch& launch) {  //s
    launch(box_kernel, {.blocks = 1, .threads = threads}, x_);  //s
  }  //s

 private:  //s
  using Value = float;  //r
  std::size_t half() const { return n_ / 2; }  //r
  std::size_t n_;  //s
  Buffer<float> x_;  //s
  double expected_ = 0;  //s
};  //s
constexpr Needs hopper{.min_sm = 90};  //s
template <Method run>  //s
constexpr Variant of(std::string_view name) {  //s
  return {.name = name, .run = run};  //s
}  //s
}  // namespace  //s

extern constinit const Pair box{  //s
    .teaches = "nothing",  //s
    // Why not.
    .needs = hopper,  //s
};  //s
}  // namespace aisp::ch07  //s
"""

HOST = r"""#include <aisp/pair.hpp>  //s
namespace aisp::ch01 {  //s
#if defined(__x86_64__)  //r
[[gnu::target("avx2")]] void add(float* x) { ++*x; }  //k
#endif  //r
class Sum final : public Workload {  //s
 public:  //s
  Sum(Setup& setup) : x_{setup.input<float>(1)} {}  //s
  void loop(Launch&) {  //k
    add(x_);  //k
  }  //k
  void compute_reference(Launch&) override {}  //r
  float helper() { return 1; }  //r
  Input<float> x_;  //s
};  //s
extern constinit const Pair sum{.device = Device::host};  //s
}  //s
"""


class CountShell(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.write("ch07/box.cu", GPU)
        self.write("ch01/sum.cpp", HOST)
        self.write("ch01/help.cpp", "int helps() { return 1; }\n")

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    def run_script(self, *arguments):
        return subprocess.run([str(SCRIPT), *map(str, arguments)], capture_output=True, text=True, check=False)

    def rows(self, *arguments):
        ended = self.run_script(*arguments)
        self.assertEqual((ended.returncode, ended.stderr), (0, ""))
        head, *lines = ended.stdout.splitlines()
        self.assertEqual(head.split(), ["pair", "file", "kernels", "rest", "shell"])
        return [(" ".join(words[:-4]), *map(float, words[-4:])) for words in map(str.split, lines)]

    @staticmethod
    def meant(text):
        kernels, shell, other = (text.count(f"//{mark}\n") for mark in "ksr")
        return text.count("\n"), kernels, shell + other, shell

    def test_lines_belong_to_what_they_declare(self):
        self.assertEqual(self.rows(self.root / "ch07/box.cu")[0], ("ch07:box", *self.meant(GPU)))

    def test_on_the_host_functions_and_what_variants_execute_are_the_kernels(self):
        self.assertEqual(self.rows(self.root / "ch01/sum.cpp")[0], ("ch01:sum", *self.meant(HOST)))

    def test_folders_give_their_pairs_and_the_median_of_each_column(self):
        rows = self.rows(self.root)
        self.assertEqual([row[0] for row in rows], ["ch01:sum", "ch07:box", "median of 2"])
        self.assertEqual(rows[2][1:], tuple((a + b) / 2 for a, b in zip(rows[0][1:], rows[1][1:])))

    def test_without_arguments_every_pair_of_the_tree_counts(self):
        chapters = SCRIPT.parent.parent / "chapters"
        pairs = sorted(f"{path.parent.name}:{path.stem}" for path in chapters.glob("ch??/*") if path.suffix in (".cu", ".cpp"))
        rows = self.rows()
        self.assertEqual([row[0] for row in rows[:-1]], pairs)
        for name, file, kernels, rest, shell in rows:
            self.assertTrue(15 < shell <= rest and kernels + rest <= file, name)

    def test_help_says_how_it_counts(self):
        ended = self.run_script("--help")
        self.assertEqual((ended.returncode, ended.stderr), (0, ""))
        for word in ("kernels", "shell", "median", "comments"):
            self.assertIn(word, ended.stdout)

    def test_wrong_usage_is_one_line(self):
        self.write("ch07/open.cu", GPU.replace("};  //s\n}  // namespace aisp", "}  // namespace aisp"))
        self.write("empty/README.md", "")
        for arguments, words in ((["--bogus"], "unknown option '--bogus'"), ([self.root / "gone.cu"], "gone.cu: no such file"),
                                 ([self.root / "empty"], "empty: no pairs"),
                                 ([self.root / "ch01/help.cpp"], "help.cpp: declares no Pair"),
                                 ([self.root / "ch07/open.cu"], "open.cu: braces do not match"),
                                 ([self.root / "ch07/box.cu", "-x"], "unknown option '-x'")):
            with self.subTest(words):
                ended = self.run_script(*arguments)
                self.assertEqual((ended.returncode, ended.stdout), (2, ""))
                self.assertRegex(ended.stderr, r"\Acount-shell: [^\n]+; see count-shell --help\n\Z")
                self.assertIn(words, ended.stderr)


if __name__ == "__main__":
    unittest.main()
