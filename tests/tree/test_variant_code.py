# SPDX-License-Identifier: Apache-2.0
"""Which functions reports show for a variant, and with which lines."""
import sys
import unittest

from tree import SOURCE

sys.dont_write_bytecode = True
sys.path.insert(0, str(SOURCE / "cmake/code"))
from source_code import tokens  # noqa: E402
from variant_code import functions  # noqa: E402

PLAIN = """#include <aisp/pair.hpp>
namespace aisp::ch07 {
namespace {
// Not this one.

// Reads { rows }.
template <class T>
__global__ __launch_bounds__(256) void slow_kernel(T* out) {
  if (out) { out[0] = 1; }
}  // done
__device__ int twice(int x) { return 2 * x; }
[[nodiscard]] __device__ int int4(int x) { return 2 * x; }
__global__ void fast_kernel(int* out) { out[0] = twice(1) + int4(1); }
class Thing final : public Workload {
 public:
  explicit Thing(Setup& setup) : a_{setup.a()}, b_{1} {}
  // Launches.
  void slow(Launch& launch) { slow_kernel<<<1, 1>>>(out_); check(0); }
  void fast(Launch&) { fast_kernel<<<1, 1>>>(out_); }
  template <int n>
  void many(Launch&) { twice(n); }
};
}
extern constinit const Pair thing{
    .baseline = {.name = "slow", .run = call<&Thing::slow>},
    .optimized = variants({{.name = "fast", .run = call<&Thing::fast>}, {.name = "many", .run = call<&Thing::many<3>>}}),
};
}
"""

INDIRECT = """namespace {
constexpr const char* const_name = "by_constant";
template <int n> __global__ void table_kernel() {}
__global__ void engine_kernel() {}
struct Engine { void run(int stream, const Extra& extra = {}) const { engine_kernel<<<1, 1>>>(); } };
struct Table { Kernel kernel; };
Table table_of() { return {table_kernel<8>}; }
struct Things {
  explicit Things() : buffer_{make({.name = "by_function"})}, table_{table_of()} {}
  void by_constant() { engine_.run(0); }
  template <int n> void by_function() { start(table_.kernel); }
  void prepare() { fill(out_, "by_argument"); }
  void by_argument() {}
  Engine engine_;
  Table table_;
};
template <Method run> constexpr Variant of(const char* name) { return {.name = name, .run = run}; }
template <int n> constexpr Variant sized(const char* name) { return {.name = name, .run = call<&Things::by_function<n>>}; }
}
extern const Pair things{.baseline = {.name = const_name, .run = call<&Things::by_constant>, .fill = call<&Things::prepare>},
    .optimized = variants({sized<8>("by_function"), of<call<&Things::by_argument>>("by_argument")})};
"""

STEERED = """namespace narrow { __global__ void step_kernel() {} void launch() { step_kernel<<<1, 1>>>(); } }
namespace wide { __global__ void step_kernel() {} void launch() { step_kernel<<<2, 2>>>(); } }
struct PingPong { __device__ void work() { alternate(); } };
template <class Schedule> __global__ void gemm_kernel() { run<Schedule>(); }
template <class Schedule> void multiply() { gemm_kernel<Schedule><<<1, 1>>>(); }
class Thing {
  void few(Launch&) { narrow::launch(); }
  void many(Launch&) { wide::launch(); }
  void pingpong(Launch&) { multiply<PingPong>(); }
};
extern constinit const Pair thing{
    .baseline = {.name = "few", .run = call<&Thing::few>},
    .optimized = variants({{.name = "many", .run = call<&Thing::many>}, {.name = "pingpong", .run = call<&Thing::pingpong>}}),
};
"""


class Panes(unittest.TestCase):
    def panes(self, *texts):
        """By variant its functions, as (kind, first line, last line, name)."""
        listed, variants = [], {}
        for lines in functions(range(len(texts)), lambda file: tokens(texts[file])).values():
            end = 0
            for kind, *words in map(str.split, lines):
                if kind == "variant":
                    variants[words[0]] = words[1]
                else:
                    first = end + int(words[0])
                    end = first + int(words[1]) - 1
                    listed.append((kind, first, end, words[2]))
        for bits in variants.values():
            self.assertEqual(len(bits), len(listed))
        return {name: [part for part, bit in zip(listed, bits) if bit == "1"] for name, bits in variants.items()}

    def names(self, *texts):
        return {variant: [part[3] for part in parts] for variant, parts in self.panes(*texts).items()}

    def test_a_variant_is_its_method_and_what_that_names(self):
        self.assertEqual(self.names(PLAIN), {"slow": ["slow_kernel", "slow"], "fast": ["twice", "int4", "fast_kernel", "fast"],
                                             "many": ["twice", "many"]})

    def test_lines_are_those_of_the_function_with_the_comment_above_it(self):
        self.assertEqual(self.panes(PLAIN)["slow"], [("kernel", 6, 10, "slow_kernel"), ("function", 17, 18, "slow")])

    def test_declarations_go_through_constants_functions_and_members(self):
        self.assertEqual(self.names(INDIRECT), {"by_constant": ["engine_kernel", "run", "by_constant", "prepare"],
                                                "by_function": ["table_kernel", "by_function"], "by_argument": ["by_argument"]})

    def test_names_are_those_of_their_namespace_and_template_arguments_bring_their_methods(self):
        panes = self.panes(STEERED)
        self.assertEqual([part for part in panes["few"] if part[3] == "launch"], [("function", 1, 1, "launch")])
        self.assertEqual([part for part in panes["many"] if part[3] == "launch"], [("function", 2, 2, "launch")])
        self.assertEqual([part[3] for part in panes["pingpong"]], ["work", "gemm_kernel", "multiply", "pingpong"])

    def test_a_header_has_functions_and_declarations(self):
        head, tail = PLAIN.split("class Thing")
        self.assertEqual(self.names("class Thing" + tail, head), {
            "slow": ["slow", "slow_kernel"], "fast": ["fast", "twice", "int4", "fast_kernel"], "many": ["many", "twice"]})
        self.assertEqual(self.names('#include "1.cu"\n', PLAIN), self.names(PLAIN))

    def test_code_that_does_not_compile_stops_nothing(self):
        for text in (*(PLAIN[:size] for size in range(0, len(PLAIN), 7)), '"open', 'R"(open', "/* open", "#define a \\", "'", "{{{",
                     "}}}", "template <", 'R"', "\\", "private:", 'f("x"', '>("x")', "namespace {", "a::(", "call<"):
            self.panes(text)


if __name__ == "__main__":
    unittest.main()
