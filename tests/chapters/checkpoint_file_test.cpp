// SPDX-License-Identifier: Apache-2.0
// Checkpoints whose writer is killed, and files that a careless writer leaves: none may be taken for a checkpoint.
#include "ch13/checkpoint_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "ch13/crew.hpp"

namespace aisp::ch13 {
namespace {

using Words = std::vector<std::uint32_t>;

class CheckpointFile : public testing::Test {
 protected:
  CheckpointFile() {
    std::string name = testing::TempDir() + "checkpoint-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error{"no folder"};
    folder_ = name;
    path_ = name + "/weights.ckpt";
  }
  ~CheckpointFile() override { std::filesystem::remove_all(folder_); }

  static Words numbered(std::uint32_t first) {
    Words words(std::size_t{1} << 18);
    std::iota(words.begin(), words.end(), first);
    return words;
  }
  static void write_part(const CheckpointWriter& file, const Words& words, std::size_t first, std::size_t count) {
    file.write(words.data() + first, count * sizeof(words[0]), first * sizeof(words[0]));
  }
  void write(const Words& words) const {
    CheckpointWriter file{path_, words.size() * sizeof(words[0])};
    write_part(file, words, 0, words.size());
    file.commit(checksum_of(words));
  }
  std::string refusal(std::size_t words_expected = std::size_t{1} << 18) const {
    Words words(words_expected);
    try {
      load_checkpoint(path_, words);
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "none";
  }
  Words loaded() const {
    Words words(std::size_t{1} << 18);
    load_checkpoint(path_, words);
    return words;
  }
  // Runs `work` in a process that kills itself at its end, as a job is that is out of time.
  template <class Work>
  static void run_and_be_killed(const Work& work) {
    const pid_t child = ::fork();
    if (child == 0) {
      work();
      ::raise(SIGKILL);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  }

  std::filesystem::path folder_;
  std::string path_;
};

TEST_F(CheckpointFile, HoldsWhatWasWritten) {
  write(numbered(7));
  EXPECT_EQ(loaded(), numbered(7));
}

TEST_F(CheckpointFile, OfAKilledWriterThereIsNone) {
  const Words words = numbered(0);
  for (const std::size_t written : {std::size_t{0}, words.size() / 2, words.size()}) {
    run_and_be_killed([&] {
      const CheckpointWriter file{path_, words.size() * sizeof(words[0])};
      write_part(file, words, 0, written);
    });
    EXPECT_TRUE(std::filesystem::exists(partial_name(path_)));
    EXPECT_THAT(refusal(), testing::HasSubstr("cannot be opened")) << written;
  }
}

TEST_F(CheckpointFile, OfAKilledWriterTheOneBeforeStays) {
  write(numbered(1));
  const Words next = numbered(2);
  run_and_be_killed([&] {
    const CheckpointWriter file{path_, next.size() * sizeof(next[0])};
    write_part(file, next, 0, next.size() / 2);
  });
  EXPECT_EQ(loaded(), numbered(1));
  write(next);  // over what the killed one left
  EXPECT_EQ(loaded(), next);
}

// A writer that opens the file by its own name: the fault that the partial name and the trailer are against.
TEST_F(CheckpointFile, WrittenInPlaceAndCutOffIsRefused) {
  write(numbered(3));
  const auto whole = std::filesystem::file_size(path_);
  for (const std::uintmax_t bytes : {whole - 1, whole - sizeof(CheckpointTrailer), whole / 2, std::uintmax_t{0}}) {
    write(numbered(3));
    std::filesystem::resize_file(path_, bytes);
    EXPECT_THAT(refusal(), testing::HasSubstr("is cut off")) << bytes;
  }
}

// Several writers fill blocks in any order: the file has its full length long before it has all bytes.
TEST_F(CheckpointFile, WithAHoleOrATornBlockIsRefused) {
  const Words words = numbered(4), later = numbered(5);
  for (const Words& in_the_hole : {Words(words.size(), 0), later}) {
    CheckpointWriter file{path_, words.size() * sizeof(words[0])};
    write_part(file, in_the_hole, 0, words.size());
    write_part(file, words, 0, words.size() / 2);
    write_part(file, words, words.size() / 2 + 1024, words.size() / 2 - 1024);
    file.commit(checksum_of(words));
    EXPECT_THAT(refusal(), testing::HasSubstr("does not have the bytes"));
  }
}

TEST_F(CheckpointFile, WithAChangedByteAnywhereIsRefused) {
  write(numbered(6));
  const auto whole = static_cast<std::streamoff>(std::filesystem::file_size(path_));
  for (const std::streamoff at : {std::streamoff{0}, whole / 2, whole - 33, whole - 32, whole - 20, whole - 12, whole - 1}) {
    write(numbered(6));
    std::fstream file{path_, std::ios::in | std::ios::out | std::ios::binary};
    file.seekg(at);
    const char byte = static_cast<char>(file.get() ^ 0x10);
    file.seekp(at);
    file.put(byte);
    file.close();
    EXPECT_NE(refusal(), "none") << at;
  }
}

TEST_F(CheckpointFile, OfAnotherModelIsRefused) {
  write(numbered(8));
  EXPECT_THAT(refusal((std::size_t{1} << 18) - 1024), testing::HasSubstr("is too long"));
  EXPECT_THAT(refusal((std::size_t{1} << 18) + 1024), testing::HasSubstr("is cut off"));
}

TEST_F(CheckpointFile, SeveralWritersMakeOneFile) {
  const Words words = numbered(9);
  Crew crew{4};
  for (int turn = 0; turn < 3; ++turn) {
    CheckpointWriter file{path_, words.size() * sizeof(words[0])};
    crew.start([&](int worker) {
      const std::size_t part = words.size() / 4;
      write_part(file, words, static_cast<std::size_t>(worker) * part, part);
    });
    crew.wait();
    file.commit(checksum_of(words));
    EXPECT_EQ(loaded(), words);
  }
}

TEST(Crew, HandsOnWhatAWorkerThrows) {
  Crew crew{3};
  crew.start([](int worker) {
    if (worker == 1) throw std::runtime_error{"full"};
  });
  EXPECT_THROW(crew.wait(), std::runtime_error);
  crew.start([](int) {});
  EXPECT_NO_THROW(crew.wait());
}

}  // namespace
}  // namespace aisp::ch13
