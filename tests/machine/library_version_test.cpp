// SPDX-License-Identifier: Apache-2.0
#include "machine/library/library_search.hpp"

#include <gtest/gtest.h>

#include "machine/fake_root.hpp"

namespace aisp::machine {
namespace {

TEST(LibraryVersion, IsInTheNameOfTheFileThatLinksLeadTo) {
  FakeRoot root;
  root.file("lib/libcublas.so.13.1.0.3", "");
  std::filesystem::create_symlink("libcublas.so.13.1.0.3", root.path() / "lib/libcublas.so.13");
  EXPECT_EQ(library_version(root.path() / "lib/libcublas.so.13"), "13.1.0.3");
}

TEST(LibraryVersion, IsThatOfTheWheelWhichListsTheFile) {
  FakeRoot root;
  root.file("site-packages/nvidia/cu13/lib/libcublas.so.13", "").file("site-packages/nvidia/cu13/lib/libcufft.so.12", "");
  root.file("site-packages/nvidia_cublas-13.1.0.3.dist-info/RECORD", "nvidia/cu13/lib/libcublas.so.13,sha256=x,1\n");
  root.file("site-packages/nvidia_nccl_cu13-2.28.7.dist-info/RECORD", "nvidia/nccl/lib/libnccl.so.2,sha256=x,1\n");
  EXPECT_EQ(library_version(root.path() / "site-packages/nvidia/cu13/lib/libcublas.so.13"), "13.1.0.3");
  EXPECT_EQ(library_version(root.path() / "site-packages/nvidia/cu13/lib/libcufft.so.12"), "") << "no wheel lists it";
  root.file("cuda/lib/libcudnn.so.9", "")
      .file("cuda/dist-info/nvidia_cudnn_cu13-9.19.0.56.dist-info/RECORD", "nvidia/cudnn/lib/libcudnn.so.9,x,1\n");
  EXPECT_EQ(library_version(root.path() / "cuda/lib/libcudnn.so.9"), "9.19.0.56");
}

TEST(LibraryVersion, IsNotKnownOfWhatIsNotThere) {
  FakeRoot root;
  EXPECT_EQ(library_version(root.path() / "libcublas.so.13"), "");
  root.file("libcublas.so.13", "").file("libcublas.so.x.y", "");
  EXPECT_EQ(library_version(root.path() / "libcublas.so.13"), "");
  EXPECT_EQ(library_version(root.path() / "libcublas.so.x.y"), "");
}

}  // namespace
}  // namespace aisp::machine
