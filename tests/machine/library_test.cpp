// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <aisp/check.hpp>
#include <aisp/library.hpp>

#include <cmath>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "machine/fake_root.hpp"
#include "machine/library/library_search.hpp"

namespace aisp::machine {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> found_below(const FakeRoot& root, const fs::path& executable,
                                     const std::map<std::string, std::string>& variables) {
  const SearchPlaces places{.root = root.path(), .executable = executable, .environment = [&](const char* name) {
                              const auto found = variables.find(name);
                              return found == variables.end() ? std::string{} : found->second;
                            }};
  std::vector<std::string> relative;
  for (const std::string& folder : search_folders(places))
    relative.push_back(fs::path{folder}.lexically_relative(root.path()).string());
  return relative;
}

TEST(LibrarySearch, LooksAtToolkitsThenAtTheTreesOwnThenAtWheels) {
  FakeRoot root;
  root.file("opt/cuda-x/lib64/a", "").file("usr/local/cuda/lib64/a", "");
  root.file("home/u/aisp/.cuda/nvidia/cu13/lib/a", "").file("home/u/aisp/setup.sh", "").file("home/u/aisp/CMakeLists.txt", "");
  root.file("opt/app/.venv/lib/python3.12/site-packages/nvidia/cudnn/lib/a", "");
  root.file("usr/local/lib/python3.11/dist-packages/nvidia/nccl/lib/a", "");
  EXPECT_THAT(found_below(root, root.path() / "home/u/aisp/build/release/aisp", {{"CUDA_HOME", "/opt/cuda-x"}}),
              ElementsAre("opt/cuda-x/lib64", "home/u/aisp/.cuda/nvidia/cu13/lib", "usr/local/cuda/lib64",
                          "usr/local/lib/python3.11/dist-packages/nvidia/nccl/lib",
                          "opt/app/.venv/lib/python3.12/site-packages/nvidia/cudnn/lib"));
}

TEST(LibrarySearch, LooksNowhereAboveTheTree) {
  FakeRoot root;
  root.file("shared/.cuda/lib64/libcufile.so.0", "");
  const auto found = [&](const char* executable) { return found_below(root, root.path() / executable, {}); };
  for (const char* executable : {"shared/aisp/build/release/aisp", "shared/aisp/build/aisp", "shared/bin/aisp", "shared/aisp"})
    EXPECT_THAT(found(executable), testing::IsEmpty()) << executable;
  root.file("shared/setup.sh", "").file("shared/CMakeLists.txt", "");
  EXPECT_THAT(found("shared/build/release/aisp"), ElementsAre("shared/.cuda/lib64"));
  EXPECT_THAT(found("shared/aisp/build/release/aisp"), testing::IsEmpty()) << "the tree is three folders up at most";
  root.file("shared/aisp/setup.sh", "").file("shared/aisp/CMakeLists.txt", "");
  EXPECT_THAT(found("shared/aisp/build/aisp"), testing::IsEmpty()) << "the first tree is the tree";
}

TEST(LibrarySearch, FollowsThePythonOnPath) {
  FakeRoot root;
  root.file("srv/env/bin/python3", "").file("srv/env/lib/python3.12/site-packages/nvidia/cu13/lib/a", "");
  root.file("h/.pyenv/shims/python3", "").file("h/.pyenv/versions/3.11.7/lib/python3.11/site-packages/torch/lib/a", "");
  EXPECT_THAT(found_below(root, "", {{"PATH", "/srv/env/bin:/h/.pyenv/shims:/nowhere"}}),
              ElementsAre("srv/env/lib/python3.12/site-packages/nvidia/cu13/lib",
                          "h/.pyenv/versions/3.11.7/lib/python3.11/site-packages/torch/lib"));
}

TEST(LibrarySearch, LooksIntoTheEnvironmentThatTheExecutableWasInstalledInto) {
  FakeRoot root;
  root.file("srv/env/lib/python3.12/site-packages/nvidia/cu13/lib/a", "");
  const auto found = [&](const char* executable) { return found_below(root, root.path() / executable, {}); };
  EXPECT_THAT(found("srv/env/bin/aisp"), testing::IsEmpty()) << "no environment: anybody may have made the folder beside";
  root.file("srv/env/pyvenv.cfg", "");
  EXPECT_THAT(found("srv/env/bin/aisp"), ElementsAre("srv/env/lib/python3.12/site-packages/nvidia/cu13/lib"));
}

TEST(LibrarySearch, FindsNothingOnABareMachine) { EXPECT_THAT(found_below(FakeRoot{}, "/usr/bin/aisp", {}), testing::IsEmpty()); }

TEST(LibrarySearch, LooksForAispsOwnNextToTheExecutableAlone) {
  FakeRoot root;
  root.file("home/u/build/release/aisp", "")
      .file("home/u/lib/aisp/a", "")
      .file("home/u/bin/aisp", "")
      .file("usr/local/cuda/lib64/a", "");
  const auto found = [&](const char* executable) {
    std::vector<std::string> relative;
    for (const std::string& folder :
         own_folders({.root = root.path(), .executable = root.path() / executable, .environment = {}}))
      relative.push_back(fs::path{folder}.lexically_relative(root.path()).string());
    return relative;
  };
  EXPECT_THAT(found("home/u/build/release/aisp"), ElementsAre("home/u/build/release"));
  EXPECT_THAT(found("home/u/bin/aisp"), ElementsAre("home/u/bin", "home/u/lib/aisp"));
}

TEST(LoaderCache, NamesFullPathsOnly) {
  using namespace std::string_literals;
  const std::string cache = "glibc-ld.so.cache1.1\0libcublas.so.13\0/opt/x/libcublas.so.13\0/opt/x/libcublas.so.13.0\0"s;
  EXPECT_EQ(find_in_loader_cache(cache, "libcublas.so.13"), "/opt/x/libcublas.so.13");
  EXPECT_EQ(find_in_loader_cache(cache, "libcublas.so"), "");
  EXPECT_EQ(find_in_loader_cache(cache, "libnccl.so.2"), "");
  EXPECT_EQ(find_in_loader_cache("", "libnccl.so.2"), "");
}

// Any library will do under another's name.
fs::path mathematics() {
  Dl_info info{};
  ::dladdr(reinterpret_cast<void*>(static_cast<double (*)(double)>(&std::cbrt)), &info);
  return info.dli_fname;
}

TEST(SharedLibraryTest, IsFoundWhereTheUserSays) {
  FakeRoot root;
  fs::copy_file(mathematics(), root.path() / "libcufile.so.0");
  ::setenv("AISP_LIBRARY_PATH", ("/nowhere:" + root.path().string()).c_str(), 1);
  EXPECT_TRUE(SharedLibrary::available(Library::cufile));
  const SharedLibrary& library = SharedLibrary::open(Library::cufile);
  ::unsetenv("AISP_LIBRARY_PATH");
  EXPECT_EQ(library.path(), (root.path() / "libcufile.so.0").string());
  EXPECT_EQ(library.file_name(), "libcufile.so.0");
  EXPECT_DOUBLE_EQ(library.function<double(double)>("cbrt")(27.0), 3.0);
  EXPECT_TRUE(library.has("cbrt"));
  EXPECT_FALSE(library.has("cuFileDriverOpen"));
  EXPECT_EQ(&SharedLibrary::open(Library::cufile), &library) << "opened twice";
  try {
    library.function<void()>("cuFileDriverOpen");
    ADD_FAILURE() << "no error";
  } catch (const Unsupported& error) {
    EXPECT_THAT(error.what(), HasSubstr("libcufile.so.0 has no cuFileDriverOpen; a newer cuFile is needed"));
  }
}

TEST(SharedLibraryTest, ThatIsAbsentSaysHowToGetIt) {
  if (SharedLibrary::available(Library::cusparselt)) GTEST_SKIP() << "it is installed here";
  try {
    SharedLibrary::open(Library::cusparselt);
    ADD_FAILURE() << "no error";
  } catch (const Unsupported& error) {
    EXPECT_THAT(error.what(), HasSubstr("libcusparseLt.so.0 not found; install cuSPARSELt"));
    EXPECT_THAT(error.what(), HasSubstr("AISP_LIBRARY_PATH"));
  }
}

TEST(SharedLibraryTest, IsNotThereWhereTheUserWantsToDoWithout) {
  FakeRoot root;
  fs::copy_file(mathematics(), root.path() / "libcusparseLt.so.0");
  ::setenv("AISP_LIBRARY_PATH", root.path().c_str(), 1);
  ::setenv("AISP_WITHOUT_LIBRARIES", "nccl,cusparselt", 1);
  EXPECT_FALSE(SharedLibrary::available(Library::cusparselt));
  try {
    SharedLibrary::open(Library::cusparselt);
    ADD_FAILURE() << "no error";
  } catch (const Unsupported& error) {
    EXPECT_THAT(error.what(), HasSubstr("libcusparseLt.so.0 not found, because AISP_WITHOUT_LIBRARIES names it"));
  }
  ::unsetenv("AISP_WITHOUT_LIBRARIES");
  ::unsetenv("AISP_LIBRARY_PATH");
}

TEST(SharedLibraryTest, ThatIsBrokenSaysSo) {
  if (SharedLibrary::available(Library::cusparselt)) GTEST_SKIP() << "a whole one is installed here";
  FakeRoot root;
  root.file("libcusparseLt.so.0", "not a library");
  ::setenv("AISP_LIBRARY_PATH", root.path().c_str(), 1);
  try {
    SharedLibrary::open(Library::cusparselt);
    ADD_FAILURE() << "no error";
  } catch (const Unsupported& error) {
    EXPECT_THAT(error.what(), HasSubstr("cannot be loaded"));
  }
  ::unsetenv("AISP_LIBRARY_PATH");
}

TEST(SharedLibraryTest, IsOpenedWhereItWasLocated) {
  const std::string path = machine::locate(Library::nvrtc);
  if (path.empty()) GTEST_SKIP() << "no NVRTC here";
  EXPECT_TRUE(fs::equivalent(SharedLibrary::open(Library::nvrtc).path(), path)) << path;
}

TEST(SharedLibraryTest, EveryOneHasANameToLookFor) {
  for (int i = 1; i <= static_cast<int>(last_library); ++i) {
    const auto library = static_cast<Library>(i);
    ASSERT_FALSE(machine::file_names(library).empty()) << name_of(library);
    EXPECT_THAT(machine::file_names(library).front(), testing::MatchesRegex("lib.*\\.so(\\.[0-9]+)?"));
  }
}

}  // namespace
}  // namespace aisp::machine
