// SPDX-License-Identifier: Apache-2.0
#include <aisp/libraries/nvrtc.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "base/system/files.hpp"
#include "base/system/places.hpp"
#include "compile/headers.hpp"
#include "compile/store.hpp"

namespace aisp {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using From = CompiledCode::From;

const KernelSource doubling{.name = "doubling.cu",
                            .text = R"(
template <int factor>
__global__ void scale_kernel(float* values) { values[threadIdx.x] *= factor; }
)",
                            .kernel = "scale_kernel<2>"};

class NvrtcTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!SharedLibrary::available(Library::nvrtc)) GTEST_SKIP() << "NVRTC is not installed";
  }
  std::vector<std::filesystem::path> files() const {
    std::vector<std::filesystem::path> found;
    for (const auto& entry : std::filesystem::directory_iterator{cache_.path()}) found.push_back(entry.path());
    return found;
  }
  std::string failure_of(const KernelSource& source) const {
    try {
      Nvrtc{90, cache_.path()}.cubin(source);
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "nothing was thrown";
  }

  base::ScratchDirectory cache_;
};

TEST_F(NvrtcTest, CompilesForAGpuThatIsNotThere) {
  const Nvrtc nvrtc{90, {}};
  EXPECT_EQ(nvrtc.architecture(), "sm_90a");
  EXPECT_GE(nvrtc.version(), 12000);
  const CompiledCode code = nvrtc.cubin(doubling);
  EXPECT_THAT(code.bytes, StartsWith("\x7f"
                                     "ELF"));
  EXPECT_THAT(code.symbol, HasSubstr("scale_kernel"));
  EXPECT_THAT(code.bytes, HasSubstr(code.symbol));
  EXPECT_GT(code.compile_ms, 0);
  EXPECT_EQ(code.from, From::compiled);
}

TEST_F(NvrtcTest, AnErrorIsOneLineAndThenTheLog) {
  const std::string failure =
      failure_of({.name = "wrong.cu", .text = "int first;\n__global__ void wrong_kernel() { missing(); }\n"});
  const std::string first_line = failure.substr(0, failure.find('\n'));
  EXPECT_THAT(first_line,
              AllOf(StartsWith("NVRTC cannot compile wrong.cu for sm_90a: wrong.cu(2): error"), HasSubstr("missing")));
  EXPECT_THAT(failure, HasSubstr("1 error detected"));
}

TEST_F(NvrtcTest, AHeaderThatIsNotThereIsNamed) {
  EXPECT_THAT(failure_of({.name = "lost.cu", .text = "#include <nowhere.cuh>\n"}),
              AllOf(HasSubstr("lost.cu(1)"), HasSubstr("nowhere.cuh")));
}

TEST_F(NvrtcTest, AnUnknownOptionAndAnUnknownKernelAreErrors) {
  KernelSource source = doubling;
  source.options = {"-no-such-option"};
  EXPECT_THAT(failure_of(source), AllOf(HasSubstr("doubling.cu"), HasSubstr("no-such-option")));
  source = doubling;
  source.kernel = "other_kernel<2>";
  EXPECT_THAT(failure_of(source), AllOf(StartsWith("NVRTC cannot compile doubling.cu"), HasSubstr("other_kernel")));
}

TEST_F(NvrtcTest, AGpuThatTheLibraryDoesNotKnowIsUnsupported) { EXPECT_THROW(Nvrtc(70, {}), Unsupported); }

TEST_F(NvrtcTest, KeepsInMemoryAndOnDisk) {
  const Nvrtc nvrtc{90, cache_.path()};
  const CompiledCode first = nvrtc.cubin(doubling);
  const CompiledCode second = nvrtc.cubin(doubling);
  const CompiledCode third = Nvrtc{90, cache_.path()}.cubin(doubling);
  EXPECT_EQ(second.from, From::memory);
  EXPECT_EQ(third.from, From::disk);
  for (const CompiledCode& code : {second, third}) {
    EXPECT_EQ(code.bytes, first.bytes);
    EXPECT_EQ(code.symbol, first.symbol);
    EXPECT_EQ(code.compile_ms, first.compile_ms) << "what it took to make, not to find";
  }
  EXPECT_EQ(files().size(), 1);
}

TEST_F(NvrtcTest, WhatDecidesTheCodeDecidesTheFile) {
  KernelSource source = doubling;
  source.headers = {{"own.cuh", "constexpr int more = 1;\n"}};
  source.text = "#include \"own.cuh\"\n" + source.text;
  const auto compiled = [&](int sm) { return Nvrtc{sm, cache_.path()}.cubin(source).from == From::compiled; };
  EXPECT_TRUE(compiled(90));
  EXPECT_FALSE(compiled(90));
  EXPECT_TRUE(compiled(80));
  source.headers.front().text = "constexpr int more = 2;\n";
  EXPECT_TRUE(compiled(90));
  source.options = {"-DFACTOR=3"};
  EXPECT_TRUE(compiled(90));
  source.kernel = "scale_kernel<3>";
  EXPECT_TRUE(compiled(90));
  EXPECT_EQ(Nvrtc(90, cache_.path()).relocatable(source).from, From::compiled);
}

TEST_F(NvrtcTest, AFileThatIsNotWhatWasWrittenIsCompiledAgain) {
  const CompiledCode first = Nvrtc{90, cache_.path()}.cubin(doubling);
  const std::filesystem::path file = files().at(0);
  const std::string good = base::read_file(file);
  std::string flipped = good;
  flipped.back() = static_cast<char>(flipped.back() ^ 1);
  for (const std::string& bad : {std::string{}, std::string{"words"}, good.substr(0, good.size() / 2), flipped, good + "more"}) {
    base::write_atomically(file, bad);
    const CompiledCode again = Nvrtc{90, cache_.path()}.cubin(doubling);
    EXPECT_EQ(again.from, From::compiled);
    EXPECT_EQ(again.bytes, first.bytes);
    EXPECT_EQ(Nvrtc(90, cache_.path()).cubin(doubling).from, From::disk) << "and written again";
  }
}

TEST_F(NvrtcTest, AFolderThatCannotBeWrittenCostsOnlyTime) {
  const std::filesystem::path file = cache_.path() / "a_file";
  base::write_atomically(file, "");
  EXPECT_EQ(Nvrtc(90, file / "below").cubin(doubling).from, From::compiled);
}

TEST_F(NvrtcTest, SeveralThreadsCompileAtOnce) {
  const Nvrtc nvrtc{90, cache_.path()};
  std::vector<CompiledCode> codes(4);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < codes.size(); ++i)
    threads.emplace_back([&, i] {
      KernelSource source = doubling;
      source.kernel = "scale_kernel<" + std::to_string(i) + ">";
      codes[i] = nvrtc.cubin(source);
    });
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < codes.size(); ++i) EXPECT_THAT(codes[i].symbol, HasSubstr("ILi" + std::to_string(i) + "E"));
}

TEST_F(NvrtcTest, MakesLtoIr) {
  const CompiledCode code =
      Nvrtc{90, {}}.lto_ir({.name = "loss.cu", .text = R"(extern "C" __device__ float loss(float a) { return a; })"});
  EXPECT_FALSE(code.bytes.empty());
  EXPECT_THAT(code.bytes, testing::Not(StartsWith("\x7f"
                                                  "ELF")));
}

TEST_F(NvrtcTest, DeviceHeadersCompileWithoutTheToolkit) {
  const std::vector<std::string> with_host_code{"aisp/device/tcgen05_descriptors.hpp"};
  for (const compile::Header& header : compile::device_headers()) {
    const std::string name{header.name};
    SCOPED_TRACE(name);
    for (const int sm : {80, 90})
      EXPECT_NO_THROW(Nvrtc(sm, cache_.path()).cubin({.name = "use.cu", .text = "#include <" + name + ">\n"}));
  }
}

TEST(ReachedHeaders, AreThoseThatTheSourceIncludesByWayOfOthers) {
  std::vector<std::string> names;
  for (const NamedText& header : compile::reached_headers({.name = "a.cu",
                                 .text = "  #  include <aisp/device/reduce.cuh>\n// #include \"not.cuh\"\n#include \"own.cuh\"\n",
                                 .headers = {{"own.cuh", "#include \"other.cuh\"\n"}, {"other.cuh", ""}, {"unused.cuh", ""}}}))
    names.push_back(header.name);
  EXPECT_THAT(names, testing::UnorderedElementsAre("aisp/device/reduce.cuh", "aisp/device/arch.cuh", "cuda_runtime.h", "cstdint",
                                                   "standard.cuh", "own.cuh", "other.cuh"));
}

TEST(ReachedHeaders, ChaptersHeadersAreFoundByTheirPath) {
  const std::vector<NamedText> headers = compile::reached_headers({.name = "a.cu", .text = "#include \"pairs/doubling.cuh\"\n"});
  ASSERT_FALSE(headers.empty());
  EXPECT_THAT(headers.back().text, HasSubstr("SPDX"));
}

TEST(CommonStore, KeepsFilesThatCleanKnows) {
  const std::filesystem::path file = compile::common_store()->file(compile::key_of({"anything"}));
  const std::string below_cache = (file.parent_path().filename() / file.filename()).string();
  EXPECT_TRUE(std::regex_match(below_cache, std::regex{base::cached_files})) << below_cache;
}

TEST(Key, PartsAreSetOffFromEachOther) {
  EXPECT_NE(compile::key_of({"ab", "c"}), compile::key_of({"a", "bc"}));
  EXPECT_NE(compile::key_of({"ab"}), compile::key_of({"ab", ""}));
}

}  // namespace
}  // namespace aisp
