# SPDX-License-Identifier: Apache-2.0
"""A pair's digest is of what runs: it changes with instructions and with host code, not with comments, layout and places."""
import sys
import unittest
import zlib

from test_registry import PROJECT, REST
from tree import CMAKE, CUDA_INCLUDES, CXX, NVCC, SOURCE, TemporaryTree, pair, run

sys.dont_write_bytecode = True
sys.path.insert(0, str(SOURCE / "cmake/code"))
from device_code import Unreadable, device_code  # noqa: E402
from source_code import Sources  # noqa: E402

KERNEL = """#include "engine.cuh"
namespace aisp::ch07 {
namespace {
__constant__ float factors[2] = {2, 3};
template <int steps>
__global__ void scale_kernel(float* values, int count) {
  __shared__ float tile[64];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) tile[threadIdx.x] = engine::scaled(values[i] * factors[i & 1]);
  __syncthreads();
  for (int step = 0; step < steps; ++step)
    if (i < count) values[i] += tile[threadIdx.x ^ step];
}
}
void launch(float* values) { scale_kernel<3><<<1, 64>>>(values, 64); }
}
"""
ENGINE = """#pragma once
namespace aisp::engine {
__device__ inline float scaled(float value) { return value * 1.5f; }
}
"""
OWN = """#include "engine.cuh"
namespace aisp::ch07 {
void launch(float* values) { engine::start<engine::Ring<4>>(values, engine::blocks); }
}
"""
HEADER = """#pragma once
namespace aisp::engine {
constexpr int width = 8, blocks = 132;
template <int stages_>
struct Ring {
  static constexpr int stages = stages_;
  float a[stages][width];
  __device__ void init(int readers) { if (readers > 3) { a[0][0] = 1; } }
};
template <class R>
__global__ void __launch_bounds__(128) kernel(float* values) { values[0] = R::stages; }
template <class R>
void start(float* values, int count) { kernel<R><<<count, 128, sizeof(R)>>>(values); }
inline int unrelated(int a) { return a + 1; }
}
"""
LIST = """#include <cstdio>
#include "pair/code.hpp"
int main() {
  for (const auto& code : aisp::pair::linked_code()) {
    for (const auto& digest : code.digests) std::printf("%d %s\\n", digest.sm, digest.digest.data());
    for (const auto& file : code.files) {
      std::printf("%s ", file.path.data());
      for (const char* byte = file.begin; byte != file.end; ++byte) std::printf("%02x", static_cast<unsigned char>(*byte));
      std::printf("\\n");
    }
  }
}
"""


def changed(text, before, after):
    assert text.count(before) == 1, f"'{before}' is {text.count(before)} times in the test's text"
    return text.replace(before, after)


class HostCode(TemporaryTree):
    def code(self, own=OWN, header=HEADER, place="chapters/ch07/engine.cuh"):
        source = self.write("chapters/ch07/box.cu", own)
        written = self.write(place, header)
        code = Sources(self.root, self.root / "include", self.root / "chapters/shared").host_code(source)
        written.unlink()
        return code

    def test_comments_and_layout_do_not_count(self):
        self.assertEqual(self.code(), self.code(
            own="// what it is\n" + changed(OWN, "float* values", "float *  values /* of all */"),
            header=changed(HEADER, "inline int", "// not used here: \" '\ninline\n   int")))

    def test_what_only_the_gpu_runs_does_not_count(self):
        for before, after in (("readers > 3", "readers > 4"), ("values[0] = R", "values[1] = R"), ("(128) kernel", "(64) kernel"),
                              ("inline int unrelated", "__device__ void more() {}\ninline int unrelated")):
            with self.subTest(after):
                self.assertEqual(self.code(), self.code(header=changed(HEADER, before, after)))

    def test_what_is_not_reached_does_not_count(self):
        for before, after in (("a + 1", "a + 2"), ("inline int unrelated", "struct More { int b = 1; };\ninline int unrelated"),
                              ("constexpr int width", "constexpr int depth = 3;\nconstexpr int width")):
            with self.subTest(after):
                self.assertEqual(self.code(), self.code(header=changed(HEADER, before, after)))

    def test_what_the_host_does_counts(self):
        for before, after in (("count, 128, sizeof", "count, 256, sizeof"), ("blocks = 132", "blocks = 264"), ("width = 8", "width = 9"),
                              ("float a[stages]", "double a[stages]"), ("#pragma once", "#pragma once\n#define FAST 1")):
            with self.subTest(after):
                self.assertNotEqual(self.code(), self.code(header=changed(HEADER, before, after)))
        self.assertNotEqual(self.code(), self.code(own=changed(OWN, "Ring<4>", "Ring<5>")))
        self.assertNotEqual(self.code(own=OWN + 'const char* text = "a  b";'), self.code(own=OWN + 'const char* text = "a b";'))

    def test_what_only_refuses_arguments_does_not_count(self):
        box = "struct Box { explicit Box(int n) { keep(n); } };\n"
        code = self.code(own=OWN + box)
        refusing = changed(box, "{ keep", '{ refuse_unless(n % 8 == 0, "n is " + text(n)); keep')
        self.assertEqual(code, self.code(own=OWN + refusing))
        checked = changed(HEADER, "inline int unrelated", "inline void refuse_unless(bool holds, const char* otherwise) { act(); }\ninline int unrelated")
        self.assertEqual(code, self.code(own=OWN + refusing, header=checked))
        for before, after in (("refuse_unless(n % 8", "if (refuse_unless(n) && n % 8"), ('); keep', '), keep'), ("refuse_unless", "refuse")):
            with self.subTest(after):
                self.assertNotEqual(code, self.code(own=OWN + changed(refusing, before, after)))

    def test_what_a_pair_says_of_its_variants_does_not_count(self):
        pair = """extern const Pair box{
    .teaches = "what it shows",
    .lesson = "wide",
    .baseline = {.name = "plain", .run = call<&Box::plain>},
    .optimized = variants({{.name = "wide", .run = call<&Box::wide>}, {.name = "deep", .run = call<&Box::deep>, .gains_over = "plain"}}),
    .controls = variants({{.name = "other", .run = call<&Box::other>, .same_bits_as = "deep", .best_of = {"plain", "deep"}}}),
    .sweep = cases({{"few", "n=8"}, {"many", "n=800"}}),
    .edges = cases({{"empty", "n=0"}, {"one", "n=1"}}),
    .timeline = true,
    .cache = Cache::hot,
};
"""
        code = self.code(own=OWN + pair)
        for before, after in (('"what it shows"', '"what"\n        " it shows, in other words"'), ('"wide",\n    .base', '"deep",\n    .base'),
                              ('    .lesson = "wide",\n', ""), (', .gains_over = "plain"', ""), (".controls =", ".libraries ="),
                              (', .same_bits_as = "deep"', ""), (', .best_of = {"plain", "deep"}', ""), (', "deep"}}}', "}}}"), ('{"empty", "n=0"}, ', ""),
                              ('    .edges = cases({{"empty", "n=0"}, {"one", "n=1"}}),\n', ""), ("n=800", "n=1600"), ("    .timeline = true,\n", ""),
                              ('    .sweep = cases({{"few", "n=8"}, {"many", "n=800"}}),\n', "    .sweep = engine::all_cases,\n")):
            with self.subTest(after):
                self.assertEqual(code, self.code(own=OWN + changed(pair, before, after)))
        for before, after in (("Box::deep", "Box::deeper"), ("Cache::hot", "Cache::cold"), ("{{.name = \"wide\", .run = call<&Box::wide>}, ", "{")):
            with self.subTest(after):
                self.assertNotEqual(code, self.code(own=OWN + changed(pair, before, after)))

    def test_which_sizes_a_pair_takes_beside_the_full_ones_does_not_count(self):
        sizes = """sizes({{.name = "rows", .full = 4096, .multiple = width, .most = 1u << 20},
                    {.name = "columns", .full = 64, .least = 2, .scales = false}})"""
        own = OWN + f"""constexpr Range range{{.least = 1, .most = 2}};
extern const Pair box{{.make = make<Box>, .sizes = {sizes}, .cache = Cache::hot}};
"""
        named = OWN + "extern const Pair box{.make = make<Box>, .sizes = engine::common};\n"
        header = changed(HEADER, "inline int unrelated", f"inline constexpr Sizes common = {sizes};\ninline int unrelated")
        of_pair, of_header = self.code(own=own), self.code(own=named, header=header)
        for before, after in ((".multiple = width, ", ""), (".multiple = width", ".multiple = 16"), (", .most = 1u << 20", ""),
                              (".most = 1u << 20", ".least = std::max(3, 4), .most = blocks"), (".least = 2, ", ""),
                              (".least = 2, ", ".least = 2, .most = 640, ")):
            with self.subTest(after):
                self.assertEqual(of_pair, self.code(own=changed(own, before, after)))
                self.assertEqual(of_header, self.code(own=named, header=changed(header, before, after)))
        for before, after in ((".full = 4096", ".full = 8192"), ('"rows"', '"lines"'), (", .scales = false", ""), (".full = 64", ".full = width")):
            with self.subTest(after):
                self.assertNotEqual(of_pair, self.code(own=changed(own, before, after)))
                self.assertNotEqual(of_header, self.code(own=named, header=changed(header, before, after)))
        self.assertNotEqual(of_pair, self.code(own=changed(own, "{.least = 1, .most = 2}", "{.least = 1, .most = 3}")), "what is no size")

    def test_what_a_pair_reports_beside_its_times_counts_where_it_is_judged_by_it_alone(self):
        box = """struct Box { void run() { act(); }
  void metrics(std::string_view, Metrics& metrics) override {
    if (wide) { metrics.report("width", engine::width, "m", Better::higher); }
  }
  void other(); };
extern const Pair box{.make = make<Box>};
"""
        code = self.code(own=OWN + box)
        self.assertEqual(code, self.code(own=OWN + changed(box, '"width"', '"breadth"')))
        self.assertNotEqual(code, self.code(own=OWN + changed(box, "act()", "rest()")))
        self.assertNotEqual(code, self.code(own=OWN + changed(box, "other()", "another()")))
        judged = changed(box, ".make", '.judged_by = "width", .make')
        self.assertNotEqual(self.code(own=OWN + judged), self.code(own=OWN + changed(judged, "engine::width", "engine::blocks")))

    def test_what_is_compiled_at_run_time_counts_in_full(self):
        self.write("include/aisp/device/part.cuh", "__device__ int part() { return 1; }\n")
        later = self.write("chapters/ch07/later.cuh", "#include <aisp/device/part.cuh>\n__device__ int later() { return part(); }\n")
        kernels = self.write("chapters/ch07/lto/kernels.cu", "__global__ void kernel() {}\n")
        for own, file in ((OWN + 'const char* text = "#include \\"ch07/later.cuh\\"\\n";', later), (OWN + 'const char* name = "ch07/lto/kernels.cu";', kernels),
                          (OWN + 'const char* text = R"(#include "ch07/later.cuh")";', self.root / "include/aisp/device/part.cuh")):
            with self.subTest(file):
                before, text = self.code(own), file.read_text()
                file.write_text("// words\n" + text)
                self.assertEqual(before, self.code(own))
                file.write_text(text.replace("{", "{ int more = 1; "))
                self.assertNotEqual(before, self.code(own))
                file.write_text(text)
                shown = Sources(self.root, self.root / "include", self.root / "chapters/shared").shown(self.root / "chapters/ch07/box.cu")
                self.assertEqual(file.resolve() in shown, file in (later, kernels), "of the chapters' files, not of the API's")

    def test_a_header_may_move(self):
        self.assertEqual(self.code(), self.code(place="chapters/shared/engine.cuh"))
        self.assertEqual(self.code(), self.code(own=changed(OWN, '"engine.cuh"', '"deep/engine.cuh"'), place="chapters/shared/deep/engine.cuh"))


ZSTD_FRAME = bytes.fromhex("28b52ffd")


class DeviceCode(TemporaryTree):
    def compiled(self, kernel=KERNEL, engine=ENGINE, folder="one", flags=("--generate-code=arch=compute_90a,code=[sm_90a]",),
                 compression="size"):
        source = self.write(f"{folder}/box.cu", kernel)
        self.write(f"{folder}/engine.cuh", engine)
        built = self.root / folder / "box.o"
        compiled = run(NVCC, "-std=c++20", "-O3", "-lineinfo", f"--compress-mode={compression}", *flags, "-c", source, "-o", built)
        self.assertEqual(compiled.returncode, 0, compiled.stderr)
        return built.read_bytes()

    def code(self, *arguments, **keywords):
        return device_code(self.compiled(*arguments, **keywords))

    def test_instructions_count_and_nothing_else(self):
        first = self.code()
        self.assertEqual(list(first), ["90"])
        with self.subTest("another place, other lines, a function that nobody calls"):
            engine = "\n// words\n" + changed(ENGINE, "}\n}", "}\n__device__ inline float unused(float a) { return a; }\n}")
            self.assertEqual(first, self.code("\n\n" + KERNEL, engine, folder="a/longer/place"))
        for name, kernel, engine in (("of an engine", KERNEL, changed(ENGINE, "1.5f", "1.25f")),
                                     ("of a constant", changed(KERNEL, "{2, 3}", "{2, 4}"), ENGINE),
                                     ("of shared memory", changed(KERNEL, "tile[64]", "tile[128]"), ENGINE),
                                     ("of another instance", changed(KERNEL, "kernel<3>", "kernel<4>"), ENGINE)):
            with self.subTest(name):
                self.assertNotEqual(first, self.code(kernel, engine))

    def test_each_architecture_has_a_digest_of_its_own(self):
        several = self.code(flags=("--generate-code=arch=compute_80,code=[sm_80]", "--generate-code=arch=compute_90a,code=[sm_90a]",
                                   "--generate-code=arch=compute_90,code=[compute_90]"))
        self.assertEqual(sorted(several), ["80", "90", "ptx90"])
        self.assertEqual(several["90"], self.code()["90"])
        self.assertEqual(len(set(several.values())), 3)

    def test_compression_makes_no_difference(self):
        flags = ("--generate-code=arch=compute_90a,code=[sm_90a]", "--generate-code=arch=compute_90,code=[compute_90]")
        small, large = (self.compiled(flags=flags, compression=mode) for mode in ("size", "none"))
        self.assertIn(ZSTD_FRAME, small)
        self.assertNotIn(ZSTD_FRAME, large)
        self.assertEqual(device_code(small), device_code(large))

    def test_code_that_cannot_be_read_is_refused(self):
        with self.assertRaisesRegex(Unreadable, "ELF"):
            device_code(b"no object file at all")
        damaged = bytearray(self.compiled())
        begin = damaged.index(ZSTD_FRAME)
        damaged[begin + 64:begin + 128] = bytes(64)
        with self.assertRaisesRegex(Unreadable, "damaged"):
            device_code(bytes(damaged))


class Build(TemporaryTree):
    def test_an_edit_changes_the_text_and_only_code_the_digest(self):
        self.write("CMakeLists.txt", PROJECT % {"source": SOURCE, "cuda": " ".join(CUDA_INCLUDES)})
        self.write("rest.cpp", REST)
        self.write("list.cpp", LIST)
        box = self.write("chapters/ch07/box.cpp", '#include "engine/ring.hpp"\n#include "part.hpp"\n' + pair("box"))
        part = self.write("chapters/ch07/part.hpp", "inline int of_header() { return 1; }\n")
        self.write("chapters/shared/engine/ring.hpp", '#include "stage.hpp"\ninline int of_ring() { return of_stage(); }\n')
        stage = self.write("chapters/shared/engine/stage.hpp", "inline int of_stage() { return 1; }\n")
        configured = run(CMAKE, "-G", "Ninja", "-S", self.root, "-B", self.root / "build", f"-DCMAKE_CXX_COMPILER={CXX}")
        self.assertEqual(configured.returncode, 0, configured.stderr)

        def digest():
            built = run(CMAKE, "--build", self.root / "build")
            self.assertEqual(built.returncode, 0, built.stdout + built.stderr)
            digest, listed = run(self.root / "build/list").stdout.split("\n", 1)
            shown = [box, part, self.root / "chapters/shared/engine/ring.hpp", stage]
            texts, functions = {}, {}
            for path, packed in map(str.split, listed.splitlines()):
                texts[path], functions[path] = zlib.decompress(bytes.fromhex(packed), -15).decode().split("\0")
            self.assertEqual(texts, {str(file.relative_to(self.root)): file.read_text() for file in shown})
            self.assertIn("\nvariant baseline ", functions["chapters/ch07/box.cpp"])
            self.assertRegex(functions["chapters/ch07/part.hpp"], r"\Afunction \d \d of_header\n\Z")
            return digest

        first = digest()
        self.assertRegex(first, "^0 [0-9a-f]{64}$")
        part.write_text("// words\n" + part.read_text())
        self.assertEqual(digest(), first, "of a comment in a header")
        box.write_text(box.read_text() + "// words\n")
        self.assertEqual(digest(), first, "of a comment in the pair")
        box.write_text(box.read_text().replace("void run(Launch&) {}", "void run(Launch&) { of_header(); }"))
        second = digest()
        self.assertNotEqual(second, first, "of other code in the pair")
        part.write_text(part.read_text().replace("return 1", "return 2"))
        third = digest()
        self.assertNotEqual(third, second, "of other code in a header")
        stage.write_text(stage.read_text().replace("return 1", "return 2"))
        self.assertEqual(digest(), third, "of code of an engine that the pair does not reach")
        box.write_text(box.read_text().replace("of_header()", "of_ring()"))
        fourth = digest()
        stage.write_text(stage.read_text().replace("return 2", "return 3"))
        self.assertNotEqual(digest(), fourth, "of other code in an engine, in a folder of those that chapters share")


if __name__ == "__main__":
    unittest.main()
